"""Open Inference Protocol v2 over gRPC, with Triton's statistics and repository extensions.

`python docs/generate_messages.py` compiles inference.proto to inference.binpb.
"""
