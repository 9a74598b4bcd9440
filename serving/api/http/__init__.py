"""HTTP/1.1 server protocol, and the router of the inference port."""
