"""Images of replicas, without an engine."""

from __future__ import annotations

import pathlib

import pytest

from serving import __version__
from serving.spawners.docker.spawner import image_of

REQUIREMENTS = pathlib.Path(__file__).parents[4] / "docker" / "requirements"
RUNTIMES = sorted(path.stem.removeprefix("replica-") for path in REQUIREMENTS.glob("replica-*.txt"))


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_each_runtime_has_the_image_that_is_built_for_it(runtime: str) -> None:
    """`make images` appends the runtime to the name, but for that of the common image."""
    common = f"luthier-replica:{__version__}"
    assert image_of(runtime) == (common if runtime == "onnx" else f"{common}-{runtime}")
