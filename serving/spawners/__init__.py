"""What starts, limits and stops replicas: as processes, or as containers of Docker."""
