"""Gearman: the protocol that shipped, its admin text, and the first draft; one hall for all."""
