"""What operators need besides the protocols: bulk operations, schedules, artifacts, signals."""
