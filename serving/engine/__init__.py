"""Which deployment answers for a model name: versions, the model repository, applications, live changes."""
