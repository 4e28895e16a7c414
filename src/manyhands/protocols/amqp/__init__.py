"""AMQP 0-9-1 for watchers: read-only topic exchanges, and queues that are cursors on a log."""
