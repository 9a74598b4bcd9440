"""Open Inference Protocol v2 over gRPC, with Triton's statistics and repository extensions.

inference.proto     the messages, for people and for clients
inference.binpb     the same, compiled: `python docs/generate_messages.py` writes it
messages            classes of the messages
calls               a gRPC call in terms of HTTP/2: fields, framing, status
codec               inference requests and answers
routes              what each method asks of the server
streams             many inferences on one stream
coding              compression of messages
listener            connections
"""
