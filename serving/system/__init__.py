"""The operating system: processes, files, timers, memory, control groups. Knows nothing of models."""
