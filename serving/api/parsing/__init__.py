"""Bounded reading of what clients send: JSON, protobuf fields, tensors."""
