"""The engine: model versions, model repository, applications, and live changes."""
