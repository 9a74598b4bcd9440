"""Who may ask: a bearer token, the port's names, pages of other origins; and which trace a request belongs to.

In: a request's head. Out: the response that refuses it, and the fields that every answer to it gets. Pure.
Health stays open without a token: whoever watches the server need not be able to ask it. Sources: RFC 6750
(bearer tokens), the Fetch standard (CORS), W3C Trace Context.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Collection

from serving.protocol.http_messages import Head, Response, json_response
from serving.protocol.pages import Hosts, is_foreign

_OPEN = {"/v2/health/live", "/v2/health/ready"}
_CHANGING = re.compile(r"/v2/repository/.*|/[^/]+/update/?")
"""What changes models, or what a policy has learnt."""
_TRACE = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(?:-[!-~]{0,200})?")
_BEARER = re.compile(rb"[Bb]earer +([!-~]+)")
_PREFLIGHT = (
    b"Access-Control-Allow-Methods: GET, POST\r\n"
    b"Access-Control-Allow-Headers: Authorization, Content-Type, Content-Encoding, "
    b"Inference-Header-Content-Length, X-Application, traceparent\r\n"
    b"Access-Control-Max-Age: 3600\r\n"
)
_EXPOSED = b"Access-Control-Expose-Headers: Inference-Header-Content-Length, Retry-After\r\n"
REFUSAL = "this server wants its token; send the field Authorization: Bearer TOKEN"
_FOREIGN = "pages of other origins may not change this server; server.cors names those that may"


class Token:
    """What whoever asks has to know."""

    def __init__(self, token: bytes) -> None:
        self._digest = hashlib.sha256(token).digest()

    def allows(self, authorization: bytes) -> bool:
        """Whether a field Authorization holds it; the time that this takes says nothing about the token."""
        match = _BEARER.fullmatch(authorization.strip())
        given = match[1] if match else b""
        return hmac.compare_digest(hashlib.sha256(given).digest(), self._digest)


class Access:
    """The rules of one port."""

    def __init__(
        self,
        *,
        token: Token | None = None,
        origins: Collection[str] = (),
        hosts: Hosts | None = None,
    ) -> None:
        """Keep what is given.

        Args:
            token: None: anybody may ask.
            origins: of pages whose scripts may read answers; `*`: all.
            hosts: names under which the port may be asked; None: any.
        """
        self._token = token
        self._hosts = hosts
        self._origins = {origin.encode() for origin in origins}

    def refusal(self, head: Head) -> Response | None:
        """What answers a request in the place of the protocols: it may not be made so, or asks for the rules."""
        path, others = head.path.partition("?")[0], head.others
        host = others.get(b"host")
        if self._hosts is not None and host is not None and path not in _OPEN:
            text = self._hosts.refusal(host.decode("latin-1"))
            if text is not None:
                return json_response(403, {"error": text})
        allowed = self._allowed_origin(head)
        if head.method == "OPTIONS" and allowed and b"access-control-request-method" in others:
            return Response(200, allowed + _PREFLIGHT, b"")  # a browser asks so before the request
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

    def fields(self, head: Head) -> bytes:
        """Fields of every answer to a request that is let in."""
        allowed = self._allowed_origin(head)
        fields = allowed + _EXPOSED if allowed else b""
        trace = head.others.get(b"traceparent")
        if trace is not None and _TRACE.fullmatch(trace):
            fields += b"traceparent: %b\r\n" % trace
        return fields

    def _allowed_origin(self, head: Head) -> bytes:
        origin = head.others.get(b"origin")
        if origin is None:
            return b""
        if b"*" in self._origins:
            return b"Access-Control-Allow-Origin: *\r\n"
        if origin in self._origins:
            return b"Access-Control-Allow-Origin: %b\r\nVary: Origin\r\n" % origin
        return b""
