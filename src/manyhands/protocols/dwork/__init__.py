"""dwork: task graphs over ZeroMQ and protobuf. Clause ids (D…) are in docs/protocols/dwork.md."""
