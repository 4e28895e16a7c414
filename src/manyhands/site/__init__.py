"""The HTTP listener with every API and page on it, and the OpenAPI document that describes them."""
