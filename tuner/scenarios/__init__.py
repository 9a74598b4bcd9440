"""Many models on a few workers: who asks for what and when, emulated in virtual time."""
