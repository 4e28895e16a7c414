"""What other programs import: workers that speak to a server over its own protocols."""
