"""The lab: two nodes on one host, containers or virtual machines, that stand in for a pair of Sparks."""
