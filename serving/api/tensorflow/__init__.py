"""TensorFlow Serving's gRPC PredictionService and ModelService.

prediction.proto  messages, for people and clients
tensor_proto      TensorProto <-> raw bytes
codec             requests and responses, on the hand-written wire format of `proto_fields`
routes            methods; the listener is shared with the other gRPC services
"""
