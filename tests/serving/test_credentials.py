"""Tokens and certificates from files and the environment."""

import pytest

from serving import credentials
from serving.errors import InvalidSettings
from serving.settings import ServerSettings


def test_no_credentials():
    """Without settings there are none."""
    assert credentials.token(ServerSettings(), {}) is None
    assert credentials.tls(ServerSettings()) is None


def test_tokens(tmp_path):
    """From the environment, or from a file, which comes first; white space around it does not count."""
    file = tmp_path / "token"
    file.write_text("from-file\n")
    environment = {credentials.TOKEN_VARIABLE: " from-environment "}
    assert credentials.token(ServerSettings(), environment).allows(b"Bearer from-environment")
    found = credentials.token(ServerSettings(token_file=str(file)), environment)
    assert found.allows(b"Bearer from-file")


@pytest.mark.parametrize(
    ("host", "is_open"),
    [("127.0.0.1", False), ("127.9.9.9", False), ("::1", False), ("localhost", False),
     ("0.0.0.0", True), ("::", True), ("10.0.0.1", True), ("example.org", True)],
)  # fmt: skip
def test_an_admin_port_for_a_network_needs_a_token(host, is_open):
    """Only loopback does without."""
    settings = ServerSettings(admin_host=host)
    environment = {credentials.ADMIN_TOKEN_VARIABLE: "secret", credentials.TOKEN_VARIABLE: "other"}
    assert credentials.admin_token(settings, environment).allows(b"Bearer secret")
    if is_open:
        with pytest.raises(InvalidSettings, match="admin_token_file"):
            credentials.admin_token(settings, {credentials.TOKEN_VARIABLE: "other"})
    else:
        assert credentials.admin_token(settings, {}) is None


@pytest.mark.parametrize("text", ["", "\n", "two words", "caf\u00e9", "a\x00b"])
def test_what_is_no_token(tmp_path, text):
    """An empty token would let everybody in."""
    file = tmp_path / "token"
    file.write_text(text)
    with pytest.raises(InvalidSettings, match=r"(?i)token"):
        credentials.token(ServerSettings(token_file=str(file)), {})
    with pytest.raises(InvalidSettings, match=r"(?i)token"):
        credentials.token(ServerSettings(), {credentials.TOKEN_VARIABLE: text})


def test_files_that_are_not_there(tmp_path):
    """The settings are named."""
    missing = str(tmp_path / "none")
    with pytest.raises(InvalidSettings, match=r"server\.token_file"):
        credentials.token(ServerSettings(token_file=missing), {})
    with pytest.raises(InvalidSettings, match="both"):
        credentials.tls(ServerSettings(tls_key=missing))
    with pytest.raises(InvalidSettings, match=r"server\.tls_certificate"):
        credentials.tls(ServerSettings(tls_key=missing, tls_certificate=missing))
    (tmp_path / "text").write_text("no certificate")
    text = str(tmp_path / "text")
    with pytest.raises(InvalidSettings, match="PEM"):
        credentials.tls(ServerSettings(tls_key=text, tls_certificate=text))
