"""Secrets of the environment stay with the server."""

import pytest

from serving import secret_variables
from serving.replica import forker

GIVEN = dict.fromkeys(secret_variables.SECRETS, "a-secret-of-sixteen") | {"PATH": "/bin"}


def test_others_get_what_is_no_secret():
    """Taken, they are gone from the environment itself."""
    environment = dict(GIVEN)
    assert secret_variables.without_secrets(environment) == {"PATH": "/bin"}
    taken = secret_variables.taken(environment)
    assert taken.keys() == set(secret_variables.SECRETS)
    assert environment == {"PATH": "/bin"}
    assert secret_variables.taken(environment) == {}


def test_replicas_get_none():
    """Nor do the processes that they are forked from."""
    assert not forker.environment(GIVEN).keys() & set(secret_variables.SECRETS)
    assert forker.environment(GIVEN)["PATH"] == "/bin"


@pytest.mark.parametrize("name", secret_variables.SECRETS)
def test_another_secret_is_the_same_program(name, monkeypatch):
    """What a killed server left can be taken over by one with a new token."""
    monkeypatch.setenv(name, "one-of-sixteen-letters")
    before = forker.program_of("echo")
    monkeypatch.setenv(name, "another-of-sixteen-letters")
    assert forker.program_of("echo") == before
    monkeypatch.setenv("NO_SECRET", "1")
    assert forker.program_of("echo") != before
