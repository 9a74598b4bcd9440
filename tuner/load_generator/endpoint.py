"""URL parsing for the HTTP server under load (RFC 3986)."""

from __future__ import annotations

import dataclasses
import re
import urllib.parse

from tuner.errors import UsageError
from tuner.load_generator.payloads import HEADER_NAME

_OIP_PATH = re.compile(
    r"(?P<metadata>.*/v2/models/(?P<model>[^/?]+)(/versions/[^/?]+)?)(/infer)?/?"
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """HTTP endpoint; `path` includes the query."""

    host: str
    port: int
    path: str

    @property
    def model(self) -> str | None:
        """Model name, if the path belongs to the Open Inference Protocol."""
        match = _OIP_PATH.fullmatch(self.path)
        return urllib.parse.unquote(match["model"]) if match else None

    @property
    def metadata_path(self) -> str | None:
        """Path of the model's metadata, if the URL names a model."""
        match = _OIP_PATH.fullmatch(self.path)
        return match["metadata"] if match else None

    @property
    def infer_path(self) -> str | None:
        """Inference path, if the URL names a model."""
        return None if self.metadata_path is None else self.metadata_path + "/infer"


def parse_url(url: str) -> Endpoint:
    """Parse a URL; the default scheme is http.

    Raises:
        UsageError: the URL is not http, lacks a host, has an invalid port, or contains credentials.
    """
    text = url if "://" in url else f"http://{url}"
    try:
        parts = urllib.parse.urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise UsageError(
            f"URL {url!r}: {error}; expected for example http://127.0.0.1:8000/path"
        ) from error
    if parts.scheme == "https":
        raise UsageError(
            f"URL {url!r}: https is not supported, because encryption would be measured "
            "with the server; use the server's http port"
        )
    if parts.scheme != "http" or not parts.hostname:
        raise UsageError(f"URL {url!r}: expected http://HOST[:PORT][/PATH]")
    if parts.username is not None:
        raise UsageError(
            f"URL {url!r}: a name and password in a URL are not supported; use --header "
            "'Authorization: ...'"
        )
    path = urllib.parse.quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._")
    if parts.query:
        path += "?" + urllib.parse.quote(parts.query, safe="/%:@!$&'()*+,;=~-._?")
    return Endpoint(host=parts.hostname, port=80 if port is None else port, path=path)


def parse_header(text: str) -> tuple[str, str]:
    """Parse the text of `--header 'Name: value'`, or raise UsageError if it cannot be sent."""
    name, colon, value = text.partition(":")
    if not colon or not HEADER_NAME.fullmatch(name) or re.search(r"[\r\n\0]", value):
        raise UsageError(f"--header {text!r}: expected 'Name: value'")
    return name, value.strip()
