"""Bytes on sockets: TCP, HTTP/1.1 and ZeroMQ, with fairness and bounds for every listener."""
