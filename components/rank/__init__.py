"""A rank's container as plain data, built once from settings: no Pulumi here, and no node is asked."""
