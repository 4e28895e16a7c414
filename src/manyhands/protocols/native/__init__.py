"""The native JSON API: bodies into commands, replies into an envelope. No protocol but JSON's."""
