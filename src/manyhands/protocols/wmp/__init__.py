"""WMP: workers and managers over ZeroMQ. Clause ids (W…) are in docs/protocols/wmp.md."""
