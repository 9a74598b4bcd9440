"""TensorFlow Serving's REST API, and its gRPC PredictionService and ModelService."""
