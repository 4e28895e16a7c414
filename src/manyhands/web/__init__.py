"""What all HTTP APIs share: routes, the envelope, query strings, long polls, OpenAPI."""
