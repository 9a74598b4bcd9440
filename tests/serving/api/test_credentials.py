"""Tokens and certificates from files and the environment."""

import dataclasses

import pytest

from serving.api import credentials
from serving.errors import InvalidSettings
from serving.settings.server import ServerSettings
from serving.system.secret_variables import ADMIN_TOKEN_VARIABLE, TOKEN_VARIABLE
from tests.fakes.certificate import certificate_in

SECRET, OTHER = "a-secret-of-sixteen", "another-of-sixteen"


def test_no_credentials():
    """Without settings there are none."""
    assert credentials.token(ServerSettings(), {}) is None
    assert credentials.tls(ServerSettings()) is None


def test_tokens(tmp_path):
    """From the environment, or from a file, which comes first; white space around it does not count."""
    file = tmp_path / "token"
    file.write_text("from-some-own-file\n")
    environment = {TOKEN_VARIABLE: " from-environment "}
    assert credentials.token(ServerSettings(), environment).allows(b"Bearer from-environment")
    found = credentials.token(ServerSettings(token_file=str(file)), environment)
    assert found.allows(b"Bearer from-some-own-file")


@pytest.mark.parametrize(
    ("host", "is_open"),
    [("127.0.0.1", False), ("127.9.9.9", False), ("::1", False), ("localhost", False),
     ("0.0.0.0", True), ("::", True), ("10.0.0.1", True), ("example.org", True)],
)  # fmt: skip
def test_an_admin_port_for_a_network_needs_a_token(host, is_open):
    """Only loopback does without."""
    settings = ServerSettings(admin_host=host)
    environment = {ADMIN_TOKEN_VARIABLE: SECRET, TOKEN_VARIABLE: OTHER}
    assert credentials.admin_token(settings, environment).allows(b"Bearer %b" % SECRET.encode())
    if is_open:
        with pytest.raises(InvalidSettings, match="admin_token_file"):
            credentials.admin_token(settings, {TOKEN_VARIABLE: OTHER})
    else:
        assert credentials.admin_token(settings, {}) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org"])
def test_an_admin_port_for_a_network_speaks_tls(host, tmp_path):
    """Its token lets run code, and would be read on the way; on loopback there is no way."""
    settings = ServerSettings(admin_host=host, admin_token_file="token")
    with pytest.raises(InvalidSettings, match=r"server\.admin_host .*server\.tls_certificate"):
        credentials.admin_tls(settings)
    certificate, key = map(str, certificate_in(tmp_path))
    settings = dataclasses.replace(settings, tls_certificate=certificate, tls_key=key)
    assert credentials.admin_tls(settings) == (certificate, key)
    assert credentials.admin_tls(dataclasses.replace(settings, admin_host="127.0.0.1")) is None


def test_an_open_admin_port_has_no_token(tmp_path):
    """Whoever says both is asked which it shall be."""
    open_to_all = ServerSettings(admin_access="open")
    assert credentials.admin_token(open_to_all, {}) is None
    with pytest.raises(InvalidSettings, match=f"--no-admin-token.*{ADMIN_TOKEN_VARIABLE}"):
        credentials.admin_token(open_to_all, {ADMIN_TOKEN_VARIABLE: SECRET})
    (tmp_path / "token").write_text(SECRET)
    both = dataclasses.replace(open_to_all, admin_token_file=str(tmp_path / "token"))
    with pytest.raises(InvalidSettings, match="admin_token_file sets a token"):
        credentials.admin_token(both, {})


@pytest.mark.parametrize("text", ["hunter2", "fifteen-letters"])
def test_a_token_that_can_be_guessed_is_refused(text, tmp_path):
    """With how long it is and what makes a better one, not with what it is."""
    (tmp_path / "token").write_text(text)
    for settings, environment in (
        (ServerSettings(token_file=str(tmp_path / "token")), {}),
        (ServerSettings(), {TOKEN_VARIABLE: text}),
    ):
        with pytest.raises(InvalidSettings, match=f"of {len(text)} characters.*openssl") as caught:
            credentials.token(settings, environment)
        assert text not in str(caught.value)
    with pytest.raises(InvalidSettings, match="16 or more"):
        credentials.admin_token(ServerSettings(), {ADMIN_TOKEN_VARIABLE: text})
    assert credentials.token(ServerSettings(), {TOKEN_VARIABLE: "s" * 16}) is not None


@pytest.mark.parametrize("text", ["", "\n", "two words", "caf\u00e9", "a\x00b"])
def test_what_is_no_token(tmp_path, text):
    """An empty token would let everybody in."""
    file = tmp_path / "token"
    file.write_text(text)
    with pytest.raises(InvalidSettings, match=r"(?i)token"):
        credentials.token(ServerSettings(token_file=str(file)), {})
    with pytest.raises(InvalidSettings, match=r"(?i)token"):
        credentials.token(ServerSettings(), {TOKEN_VARIABLE: text})


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


@pytest.mark.parametrize(
    ("bound", "hosts", "host", "is_allowed"),
    [
        ("127.0.0.1", None, "evil.example", False),
        ("localhost", None, "evil.example", False),
        ("::1", None, "[::1]:8000", True),
        ("127.0.0.1", "models.example, other.example", "other.example:80", True),
        ("127.0.0.1", "*", "evil.example", True),
        ("0.0.0.0", None, "evil.example", True),
        ("0.0.0.0", "models.example", "evil.example", False),
        ("0.0.0.0", "models.example", "models.example", True),
        ("10.0.0.1", "models.example", "10.0.0.1:8000", True),
        ("10.0.0.1", "models.example", "localhost", True),
    ],
)
def test_names_of_a_port(bound, hosts, host, is_allowed):
    """A port on loopback has those of loopback; one of a network any, unless they are given."""
    names = credentials.hosts(ServerSettings(hosts=hosts), bound)
    assert (names is None or names.refusal(host) is None) is is_allowed
