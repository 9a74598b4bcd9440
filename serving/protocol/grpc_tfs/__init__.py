"""TensorFlow Serving's gRPC services on one engine: PredictionService and ModelService.

prediction.proto  the messages that are spoken, for people and for clients
fields            protobuf's wire format, read and written by hand: there are few messages, and their
                  numbers are a tensor's bytes already
tensor_proto      TensorProto and a tensor's raw bytes
codec             requests and answers
routes            what each method asks of the server; the listener is that of the other gRPC services
"""
