"""Following a start from the control host: every rank's log, until the head serves or the cause of failure is known."""
