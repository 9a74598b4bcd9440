"""What a request to the admin port of a server of this test brings."""

from serving.api import admin_token


def token_fields(port: int) -> dict[str, str]:
    """The field with the token that the server has made; nothing where it asks for none that it made."""
    token = admin_token.of_port(port)
    return {} if token is None else {"Authorization": f"Bearer {token}"}
