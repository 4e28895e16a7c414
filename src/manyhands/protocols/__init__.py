"""Protocols, sans-IO: messages of one protocol into commands, replies into its words."""
