"""Several servers on one database: membership, links, and who decides."""
