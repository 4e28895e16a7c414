"""The default store: live jobs in memory, records in SQLite."""
