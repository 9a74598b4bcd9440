"""Whether there is a Docker engine with the images of this checkout, for the tests that need one.

`make test-docker` sets LUTHIER_NEED_DOCKER: what is missing then fails the tests instead of skipping them.
"""

import os

import pytest

from serving.spawners.docker.containers import DockerClient, DockerError
from serving.spawners.docker.spawner import image_of


def _missing():
    """Why tests with containers cannot run, None if they can."""
    if "DOCKER_HOST" not in os.environ:  # an engine of the machine is nobody's to test with unasked
        return "DOCKER_HOST names no engine; `make test-docker` says how"
    try:
        engine = DockerClient.connect()
        if not engine.has_image(image_of("python")):
            return f"no image {image_of('python')}; `make images` builds it"
    except DockerError as error:
        return str(error)
    return None


IS_NEEDED = os.environ.get("LUTHIER_NEED_DOCKER") == "1"
MISSING = _missing() if IS_NEEDED else "runs by `make test-docker`"

needs_docker = pytest.mark.skipif(MISSING is not None and not IS_NEEDED, reason=str(MISSING))


def engine():
    """The engine.

    Raises:
        AssertionError: it is missing, but was asked for.
    """
    assert MISSING is None, MISSING
    return DockerClient.connect()
