"""What stores share that keep records in a database: frames, tables, and how they fold."""
