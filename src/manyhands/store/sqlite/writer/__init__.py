"""The writer process: the journal, and after it the database."""
