"""Gearman: the shipped protocol, its admin text, and the first draft, with one shared hall."""
