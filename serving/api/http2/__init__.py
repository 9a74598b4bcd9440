"""HTTP/2 server protocol (RFC 9113) without sockets."""
