"""Open Inference Protocol v2 over gRPC, with Triton's statistics and repository extensions.

inference.proto     messages, for people and clients
inference.binpb     the same, compiled by `python docs/generate_messages.py`
messages            message classes
calls               gRPC calls over HTTP/2: fields, framing, status
codec, contents     inference requests and responses
repeats             parse cache
routes              methods
streams             `ModelStreamInfer`
coding              message compression
listener            connections
"""
