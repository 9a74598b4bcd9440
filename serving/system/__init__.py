"""Access to the operating system: processes, files, timers, memory and control groups."""
