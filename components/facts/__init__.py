"""What was read from the nodes, and what follows from it: refusals, repairs, a new generation. No Pulumi here."""
