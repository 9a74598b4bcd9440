"""For all tests."""

import os
import pathlib

import pytest

from tests.fakes import gpu as fake_gpu

try:
    import hypothesis
except ImportError:  # tests/frameworks run in an environment of their own, without it
    pass
else:
    # On a shared machine an example, and drawing it, may take any time: what bounds a test is pytest's timeout.
    # Where the same laws are tried once more, on other versions or compiled, fewer examples will do.
    hypothesis.settings.register_profile(
        "shared machine",
        deadline=None,
        max_examples=int(os.environ.get("LUTHIER_EXAMPLES", "100")),
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile("shared machine")


@pytest.fixture(scope="session", autouse=True)
def _user_folders(tmp_path_factory):
    """What servers keep is not left in the folders of who tests; what pip keeps is used."""
    before = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    with pytest.MonkeyPatch.context() as patch:
        if "PIP_CACHE_DIR" not in os.environ:
            patch.setenv("PIP_CACHE_DIR", str(pathlib.Path(before, "pip")))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        yield


@pytest.fixture(scope="session")
def gpu_libraries(tmp_path_factory):
    """A folder with the libraries of a fake GPU's driver."""
    return fake_gpu.built_in(tmp_path_factory.mktemp("gpu"))


@pytest.fixture
def gpu(gpu_libraries, tmp_path, monkeypatch):
    """A machine with one GPU, which is a fake behind the real binding."""
    return fake_gpu.plugged_in(gpu_libraries, tmp_path, monkeypatch)
