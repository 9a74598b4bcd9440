"""HTTP/1.1: connections, requests, access, middleware, and the router of the inference port."""
