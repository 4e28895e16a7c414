"""Manyhands: one durable job server behind many job protocols."""

__version__ = "0.1.0"
