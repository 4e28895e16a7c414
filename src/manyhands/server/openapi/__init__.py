"""The OpenAPI document of everything that the HTTP listener serves, and a page to read it."""

from manyhands.server.openapi.document import document
from manyhands.server.openapi.page import page

__all__ = ["document", "page"]
