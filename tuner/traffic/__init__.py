"""The load generator: what is sent (payloads), when (arrivals), and by whom (a lean client)."""
