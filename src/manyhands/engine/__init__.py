"""The rules: pure functions from a command and a view to an outcome."""
