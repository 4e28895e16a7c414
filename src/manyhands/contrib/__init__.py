"""Integrations with other frameworks, imported only by those who use them."""
