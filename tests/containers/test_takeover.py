"""`kill -9` of a server whose models share containers, and the next one over the same folder: it goes on with them."""

import contextlib
import os
import pathlib
import shutil
import signal
import tempfile

import docker
import pytest

from serving import __version__, owner, zoo
from serving.replica import container_engine
from serving.replica.as_container import image_of
from serving.replica.container_engine import OWNER_LABEL
from tests.fakes.docker_engine import needs_docker
from tests.fakes.killable import servers, wait_for

pytestmark = needs_docker
NAMES = ("gan", "mnist", "resnet")
CODE = """
import pathlib

FOLDER = pathlib.Path(__file__).parent


class Adds:
    inputs = outputs = [{"name": "x", "datatype": "INT32", "shape": [-1, 1]}]
    sample_inputs = {"x": [[1]]}

    def predict_batch(self, inputs):
        return {"x": inputs["x"] + int((FOLDER / "number").read_text())}
"""
OTHER_IMAGE = "luthier-test:other"


@pytest.fixture(name="client", scope="module")
def _client():
    client = docker.from_env()
    yield client
    client.close()


@pytest.fixture(name="folder")
def _folder():
    # A short name, for sockets; one that the containers' user may enter.
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        (folder / "tmp").mkdir()
        yield folder


@pytest.fixture(name="serve")
def _serve(folder, monkeypatch):
    """Starts servers over one folder, whose own directories are in another one; none is left at the end."""
    monkeypatch.setenv("TMPDIR", str(folder / "tmp"))
    defaults = {"scheduling.policy": "clockwork", "replica.home": "docker"}
    with servers(folder, defaults) as serve:
        yield serve


@pytest.fixture(name="engine")
def _engine(client, folder):
    """`engine()`: ids and containers of the servers of this folder, those that have ended included."""

    def containers():
        found = {}
        for home in _homes(folder):
            filters = {"label": f"{OWNER_LABEL}={home.name}"}
            of_home = client.containers.list(all=True, filters=filters, ignore_removed=True)
            found |= {container.id: container for container in of_home}
        return found

    return containers


def _homes(folder):
    """Directories of homes of containers, also of those that are in ruins."""
    return [path for path in (folder / "tmp").glob("luthier-*") if owner.of(path.name)]


def _cards(folder, names=NAMES):
    """Words that serve copies of models of the zoo."""
    words = []
    for name in names:
        file = folder / f"{name}.onnx"
        if not file.exists():
            shutil.copy(zoo.find(name).path, file)
        words += ["--model", str(file)]
    return words


def _settled(engine, count):
    """Ids of so many containers, when those that measured models are gone."""
    wait_for(lambda: len(engine()) == count, f"there are not {count}")
    return set(engine())


def _keepers(folder):
    return [owner.of(home.name).pid for home in _homes(folder)]


def test_models_that_were_in_memory_stay_there(serve, engine, folder):
    """The same containers answer the same as before, and nothing is loaded; an orderly end leaves nothing."""
    cards = _cards(folder)
    settings = {"replica.count": 2}
    first = serve(*cards, settings=settings)
    before = [first.ask_zeros(name) for name in NAMES]
    containers, pids = _settled(engine, 2), first.pids()
    assert first.loads() >= len(NAMES)
    first.kill()
    container_engine.cleanup_stale()  # as another server's start does
    for _ in range(2):
        following = serve(*cards, settings=settings)
        assert following.pids() == pids
        assert _settled(engine, 2) == containers
        assert [following.ask_zeros(name) for name in NAMES] == before
        assert following.loads() == 0
        following.kill()
    last = serve(*cards, settings=settings)
    assert last.pids() == pids
    assert last.stop() == 0
    assert not engine()
    assert not list((folder / "tmp").iterdir())
    assert [file.stat().st_nlink for file in folder.glob("*.onnx")] == [1] * len(NAMES)


def test_several_kinds_and_what_code_reads_late(serve, engine, folder):
    """Each kind has a home of its own; beside code that stays loaded is what lay there when it was deployed."""
    code = folder / "code" / "adds.py"
    code.parent.mkdir()
    code.write_text(CODE)
    (code.parent / "number").write_text("5")
    cards = [*_cards(folder, ["gan"]), "--model", f"{code}:Adds"]
    first = serve(*cards)
    (name,) = set(first.models) - {"gan"}
    before = first.ask_zeros("gan")
    assert first.ask(name) == 6
    containers = _settled(engine, 2)
    first.kill()
    (code.parent / "new").write_text("50")
    (code.parent / "new").rename(code.parent / "number")
    second = serve(*cards)
    assert _settled(engine, 2) == containers
    assert (second.ask(name), second.ask_zeros("gan")) == (6, before)
    assert second.loads() == 0
    assert second.stop() == 0
    assert not engine()


def test_nothing_waits_for_ever(serve, engine, folder):
    """When no server comes in time, containers and directories are removed."""
    server = serve(*_cards(folder, ["gan"]), settings={"clockwork.takeover_s": 1})
    server.ask_zeros("gan")
    _settled(engine, 1)
    server.kill()
    assert [container.status for container in engine().values()] == ["running"]
    wait_for(lambda: not engine() and not _homes(folder), "something is left")


@pytest.mark.parametrize(
    "settings", [{"clockwork.takeover_s": 0}, {"scheduling.policy": "adaptive"}]
)
def test_others_end_at_once_with_their_server(serve, engine, folder, settings):
    """Where it is off, and where no models share replicas; the next server starts its own."""
    cards = _cards(folder, ["gan"])
    first = serve(*cards, settings=settings)
    containers = set(engine())
    first.kill()
    second = serve(*cards, settings=settings)
    second.ask_zeros("gan")
    assert not set(engine()) <= containers
    wait_for(lambda: not set(engine()) & containers, "something is left")


def test_what_has_changed_is_loaded_anew(serve, engine, folder):
    """A model's file: the rest is used as it is; files that were lent of what is gone are removed."""
    cards = _cards(folder)
    first = serve(*cards)
    same, before, _ = (first.ask_zeros(name) for name in NAMES)
    containers = _settled(engine, 1)
    first.kill()
    shutil.copy(zoo.find("resnet").path, folder / "new")
    (folder / "new").rename(folder / "mnist.onnx")
    second = serve(*cards[:4])
    assert _settled(engine, 1) == containers
    assert second.ask_zeros("gan") == same
    assert second.ask_zeros("mnist") != before
    assert second.request("GET", "/v2/models/resnet")[0] == 404
    assert second.loads() == 1
    # Of each that is loaded since before what the first server lent, too.
    links = {name: (folder / f"{name}.onnx").stat().st_nlink for name in NAMES}
    assert links == {"gan": 3, "mnist": 2, "resnet": 1}
    status, _ = second.request("DELETE", "/admin/models/gan/versions/1", admin=True)
    assert status < 300
    wait_for(lambda: (folder / "gan.onnx").stat().st_nlink == 1, "it stays lent")
    assert second.stop() == 0


def test_copies_are_known_again(serve, engine, folder):
    """Where files cannot be linked, as on another file system: a copy is known by its size and time."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        models = pathlib.Path(elsewhere)
        if models.stat().st_dev == folder.stat().st_dev:
            pytest.skip("there is no other file system")
        cards = _cards(models, ["gan", "mnist"])
        first = serve(*cards)
        before = [first.ask_zeros(name) for name in ("gan", "mnist")]
        first.kill()
        stamps = (models / "mnist.onnx").stat()
        shutil.copy(zoo.find("mnist").path, models / "mnist.onnx")  # the same at another time
        os.utime(models / "mnist.onnx", ns=(stamps.st_atime_ns, stamps.st_mtime_ns + 1))
        second = serve(*cards)
        assert [second.ask_zeros(name) for name in ("gan", "mnist")] == before
        assert second.loads() == 0
        second.kill()
        third = serve(*cards)
        assert [third.ask_zeros(name) for name in ("gan", "mnist")] == before
        assert third.loads() == 0
        assert third.stop() == 0


def test_one_that_ends_meanwhile_is_replaced(serve, engine, folder, client):
    """The other one is used, and the model answers."""
    cards, settings = _cards(folder, ["gan"]), {"replica.count": 2}
    first = serve(*cards, settings=settings)
    first.ask_zeros("gan")
    containers = _settled(engine, 2)
    first.kill()
    victim = min(containers)
    client.containers.get(victim).kill()
    second = serve(*cards, settings=settings)
    second.ask_zeros("gan")
    wait_for(lambda: victim not in engine(), "it is left")
    assert _settled(engine, 2) & containers == containers - {victim}
    assert second.stop() == 0


def test_limits_are_set_anew(serve, engine, folder):
    """Those of the containers that are taken over, and known to the server after the next."""
    cards = _cards(folder, ["gan"])
    settings = {"clockwork.memory_mb": 64}
    first = serve(*cards, settings={**settings, "replica.cpu": 0.5, "replica.memory_mb": 300})
    pids = first.pids()
    _settled(engine, 1)
    first.kill()
    for _ in range(2):
        wanted = {**settings, "replica.cpu": 0.25, "replica.memory_mb": 400}
        server = serve(*cards, settings=wanted)
        assert server.pids() == pids
        _settled(engine, 1)
        (container,) = engine().values()
        limits = container.attrs["HostConfig"]
        assert (limits["CpuQuota"], limits["Memory"]) == (25_000, 400 * 2**20)
        server.kill()


@pytest.mark.parametrize(
    "change", ["settings", "image", "GPUs", "home"], ids=lambda change: f"other {change}"
)
def test_what_is_as_nobody_would_start_it_ends(serve, engine, folder, client, monkeypatch, change):
    """Its place is taken by another one, or by a process."""
    cards = _cards(folder, ["gan"])
    first = serve(*cards)
    before = first.ask_zeros("gan")
    containers = _settled(engine, 1)
    first.kill()
    settings = {}
    if change == "settings":
        settings = {"clockwork.memory_mb": 8}
    elif change == "image":
        _other_image(client)
        settings = {"replica.image": OTHER_IMAGE}
    elif change == "GPUs":
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    else:
        settings = {"replica.home": "process"}
    second = serve(*cards, settings=settings)
    assert second.ask_zeros("gan") == before
    assert not _settled(engine, int(change != "home")) & containers
    assert second.stop() == 0
    wait_for(lambda: not list((folder / "tmp").iterdir()), "a directory is left")


def test_processes_end_where_containers_are_wanted_now(serve, engine, folder):
    """The home of what is left is known by its directory."""
    cards = _cards(folder, ["gan"])
    first = serve(*cards, settings={"replica.home": "process"})
    before = first.ask_zeros("gan")
    (pid,) = first.pids()
    first.kill()
    second = serve(*cards)
    assert second.ask_zeros("gan") == before
    _settled(engine, 1)
    assert not pathlib.Path(f"/proc/{pid}").exists()
    assert second.stop() == 0


def test_a_keeper_that_is_killed_meanwhile(serve, engine, folder):
    """With the server: the next one says so in a line, cleans up, and starts anew."""
    cards = _cards(folder, ["gan"])
    first = serve(*cards)
    containers = set(engine())
    (keeper,) = _keepers(folder)
    os.kill(keeper, signal.SIGSTOP)
    first.kill()
    os.kill(keeper, signal.SIGKILL)
    second = serve(*cards)
    second.ask_zeros("gan")
    assert not set(engine()) & containers
    assert (folder / "log").read_text().count('"nothing is taken over"') == 1
    assert second.stop() == 0
    assert not list((folder / "tmp").iterdir())


def test_a_keeper_that_is_killed_while_the_server_lives(serve, engine, folder):
    """Its containers, which nobody would remove any more, are replaced, and the new ones are another keeper's."""
    cards = _cards(folder, ["gan", "mnist"])
    server = serve(*cards, settings={"replica.count": 2})
    before = [server.ask_zeros(name) for name in ("gan", "mnist")]
    containers, pids = _settled(engine, 2), server.pids()
    (keeper,) = _keepers(folder)
    os.kill(keeper, signal.SIGKILL)
    wait_for(lambda: len(server.pids() - pids) == 2, "they are not replaced")
    assert [server.ask_zeros(name) for name in ("gan", "mnist")] == before
    assert not _settled(engine, 2) & containers
    (other,) = _keepers(folder)
    assert other != keeper
    now = server.pids()
    server.kill()
    second = serve(*cards, settings={"replica.count": 2})
    assert second.pids() == now
    assert [second.ask_zeros(name) for name in ("gan", "mnist")] == before
    assert second.stop() == 0
    assert not engine()
    assert not list((folder / "tmp").iterdir())


def _other_image(client):
    """The same image under another id."""
    with contextlib.suppress(docker.errors.ImageNotFound):
        client.images.remove(OTHER_IMAGE, force=True)
    container = client.containers.create(image_of("onnx"))
    try:
        name, tag = OTHER_IMAGE.split(":")
        container.commit(name, tag, changes=f"LABEL version={__version__}")
    finally:
        container.remove(force=True)
