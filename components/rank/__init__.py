"""A rank's container as plain data, built once from settings. No Pulumi here, and no node is asked."""
