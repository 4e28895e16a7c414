"""The native JSON API: bodies become commands, replies become envelopes."""
