"""The engine: model versions, the model repository, applications, and live changes."""
