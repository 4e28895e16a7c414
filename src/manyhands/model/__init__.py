"""Frozen values: jobs, commands, events, refusals and bounds. Nothing here does I/O."""
