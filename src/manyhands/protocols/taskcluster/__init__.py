"""Taskcluster 0.2.0: job state changes as the messages of four topic exchanges."""
