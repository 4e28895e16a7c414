"""Live jobs in memory, private to the stores that keep them there."""
