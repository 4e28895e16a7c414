"""Where the world is: event loop, clock, dispatcher, listeners."""
