"""Taskcluster 0.2.0: every job's changes of state as the messages of four topic exchanges."""
