"""The lab: two virtual machines that stand in for a pair of Sparks, on one control host."""
