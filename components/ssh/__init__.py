"""Reaching a node: the ssh program's own configuration, quoting, and scripts that run there from stdin."""
