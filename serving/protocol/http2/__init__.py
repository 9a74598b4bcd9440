"""HTTP/2 for a server of calls and of streams of messages: bytes <-> what they mean, without a socket (RFC 9113)."""
