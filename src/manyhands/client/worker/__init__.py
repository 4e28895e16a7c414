"""The worker: runs the tasks of an app."""
