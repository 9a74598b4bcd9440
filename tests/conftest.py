"""For all tests."""

import os
import pathlib
import re
import sys

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
        max_examples=int(os.environ.get("LUTHIER_EXAMPLES", "50")),
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile("shared machine")


HERE = pathlib.Path(__file__).parent
STARTS_PROCESSES = re.compile(
    r"\b(subprocess|multiprocessing|os\.fork|ProcessSpawner|DockerSpawner|LoadGenerator|certificate_in|"
    r"running_redis|running_postgresql|\(gpu|mark\.processes)\b"
)
"""What the text of a module says whose tests start processes: itself, through parts of the product, or by the
mark `processes`."""
FOLDERS_WITH_PROCESSES = (
    "abuse",
    "cluster",
    "containers",
    "contracts",
    "engines",
    "flows",
    "frameworks",
    "release",
)
ASKS_MACHINE = ("uname", "lscpu")
"""What `platform.processor` and scikit-learn start to ask for the processor."""
PROCESS_EVENTS = ("subprocess.Popen", "os.fork", "os.posix_spawn", "os.system", "os.exec")


def pytest_addoption(parser):
    """Add `--unit`."""
    parser.addoption("--unit", action="store_true", help="only tests that start no process")


def pytest_ignore_collect(collection_path, config):
    """With `--unit`, leave out modules whose tests start processes, without importing them."""
    if not config.getoption("--unit") or not collection_path.is_relative_to(HERE):
        return None
    place = collection_path.relative_to(HERE)
    if place.parts[:1] and place.parts[0] in FOLDERS_WITH_PROCESSES:
        return True
    if not place.match("test_*.py"):
        return None
    return STARTS_PROCESSES.search(collection_path.read_text(encoding="utf-8")) is not None or None


def pytest_configure(config):
    """With `--unit`, fail a test that starts a process."""
    if config.getoption("--unit"):
        sys.addaudithook(_refuse_process)


def _refuse_process(event, arguments):
    if event not in PROCESS_EVENTS or "PYTEST_CURRENT_TEST" not in os.environ:
        return
    if event == "subprocess.Popen" and arguments[1][0] in ASKS_MACHINE:
        return
    raise RuntimeError(
        f"{event}: a test of `make unit` starts a process; mark its module `processes`"
    )


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
