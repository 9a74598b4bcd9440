"""HTTP/2 for a server of calls and of streams of messages: bytes <-> requests and answers, without a socket (RFC 9113, RFC 7541)."""
