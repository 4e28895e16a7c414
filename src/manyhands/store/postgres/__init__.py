"""The store on PostgreSQL: live jobs in memory, the journal and the records in the database."""
