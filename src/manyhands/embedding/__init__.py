"""A server inside another program: ``App(embedded("./jobs"))``.

Importing this costs next to nothing; the server itself is imported when it starts, at the first
connection.
"""

from manyhands.embedding.place import Embedded, EmbeddedError, embedded

__all__ = ["Embedded", "EmbeddedError", "embedded"]
