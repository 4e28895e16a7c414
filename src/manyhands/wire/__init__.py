"""Codecs without I/O: bytes in, messages out, and back again. They know frames, not jobs."""
