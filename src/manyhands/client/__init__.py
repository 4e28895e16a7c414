"""What other programs import: workers and submitters that talk to a server over its protocols."""
