"""Protocols, sans-IO: messages become commands, replies become messages."""
