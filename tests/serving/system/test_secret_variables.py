"""Secrets of the environment stay with the server."""

from serving.spawners.process import forkserver_client
from serving.system import secret_variables

GIVEN = dict.fromkeys(secret_variables.SECRETS, "a-secret-of-sixteen") | {"PATH": "/bin"}


def test_others_get_what_is_no_secret():
    """Taken, they are gone from the environment itself."""
    environment = dict(GIVEN)
    assert secret_variables.without_secrets(environment) == {"PATH": "/bin"}
    taken = secret_variables.take(environment)
    assert taken.keys() == set(secret_variables.SECRETS)
    assert environment == {"PATH": "/bin"}
    assert secret_variables.take(environment) == {}


def test_replicas_get_none():
    """Nor do the processes that they are forked from."""
    assert not forkserver_client.environment(GIVEN).keys() & set(secret_variables.SECRETS)
    assert forkserver_client.environment(GIVEN)["PATH"] == "/bin"
