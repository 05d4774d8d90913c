"""How a start goes, seen from the control host: every rank's log, until the head serves or the cause is known."""
