"""The one writer: commands in arrival order, decided, committed in groups, answered."""
