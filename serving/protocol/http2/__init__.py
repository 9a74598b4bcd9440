"""HTTP/2 for a server of unary calls: bytes <-> requests and answers, without a socket (RFC 9113, RFC 7541)."""
