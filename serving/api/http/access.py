"""Access rules of a port: token, host names, origins of pages, trace context.

Sources: RFC 6750 (bearer tokens), the Fetch standard (CORS), W3C Trace Context.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Collection

from serving.api.http.messages import RequestHead, Response, json_response
from serving.api.transport.trusted_hosts import TrustedHosts, is_foreign

_OPEN = {"/v2/health/live", "/v2/health/ready"}
_CHANGING = re.compile(r"/v2/repository/.*|/[^/]+/update/?")
_TRACE = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(?:-[!-~]{0,200})?")
_BEARER = re.compile(rb"[Bb]earer +([!-~]+)")
_PREFLIGHT = (
    b"Access-Control-Allow-Methods: GET, POST\r\n"
    b"Access-Control-Allow-Headers: Authorization, Content-Type, Content-Encoding, "
    b"Inference-Header-Content-Length, X-Application, traceparent\r\n"
    b"Access-Control-Max-Age: 3600\r\n"
)
_EXPOSED = b"Access-Control-Expose-Headers: Inference-Header-Content-Length, Retry-After\r\n"
REFUSAL = "this server requires its token; send the field Authorization: Bearer TOKEN"
_FOREIGN = "pages of other origins may not change this server; server.cors lists the allowed ones"


class Token:
    """Bearer token of a port."""

    def __init__(self, token: bytes) -> None:
        self._digest = hashlib.sha256(token).digest()

    def allows(self, authorization: bytes) -> bool:
        """Return whether an Authorization header has the token, in constant time."""
        match = _BEARER.fullmatch(authorization.strip())
        given = match[1] if match else b""
        return hmac.compare_digest(hashlib.sha256(given).digest(), self._digest)


class Access:
    """Access rules of one port."""

    def __init__(
        self,
        *,
        token: Token | None = None,
        origins: Collection[str] = (),
        hosts: TrustedHosts | None = None,
    ) -> None:
        """Store the rules; pages from `origins` (`*` means any) may read responses."""
        self._token = token
        self._hosts = hosts
        self._origins = {origin.encode() for origin in origins}

    def refusal(self, head: RequestHead) -> Response | None:
        """Return a rejection or a CORS preflight response, if any."""
        path, others = head.path.partition("?")[0], head.others
        host = others.get(b"host")
        if self._hosts is not None and host is not None and path not in _OPEN:
            text = self._hosts.refusal(host.decode("latin-1"))
            if text is not None:
                return json_response(403, {"error": text})
        allowed = self._allowed_origin(head)
        if head.method == "OPTIONS" and allowed and b"access-control-request-method" in others:
            return Response(200, allowed + _PREFLIGHT, b"")  # CORS preflight
        site, origin = others.get(b"sec-fetch-site"), others.get(b"origin")
        if not allowed and is_foreign(site, origin, host) and _CHANGING.fullmatch(path):
            return json_response(403, {"error": _FOREIGN})
        if self._token is None or path in _OPEN:
            return None
        if self._token.allows(others.get(b"authorization", b"")):
            return None
        response = json_response(401, {"error": REFUSAL})
        fields = response.fields + b"WWW-Authenticate: Bearer\r\n" + allowed
        return response._replace(fields=fields)

    def fields(self, head: RequestHead) -> bytes:
        """Return the headers to add to every response to an accepted request."""
        allowed = self._allowed_origin(head)
        fields = allowed + _EXPOSED if allowed else b""
        trace = head.others.get(b"traceparent")
        if trace is not None and _TRACE.fullmatch(trace):
            fields += b"traceparent: %b\r\n" % trace
        return fields

    def _allowed_origin(self, head: RequestHead) -> bytes:
        origin = head.others.get(b"origin")
        if origin is None:
            return b""
        if b"*" in self._origins:
            return b"Access-Control-Allow-Origin: *\r\n"
        if origin in self._origins:
            return b"Access-Control-Allow-Origin: %b\r\nVary: Origin\r\n" % origin
        return b""
