"""HTTP/2 server protocol without sockets: bytes to requests, responses to bytes (RFC 9113)."""
