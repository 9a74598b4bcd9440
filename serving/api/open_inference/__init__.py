"""Open Inference Protocol v2 over HTTP."""
