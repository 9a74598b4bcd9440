"""A gateway's half of the replica wire."""

from tests.serving.conftest import frame_fixture, talk_fixture

__all__ = ["frame_fixture", "talk_fixture"]
