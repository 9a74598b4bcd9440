"""Load generator: payloads, arrival schedules and an HTTP client."""
