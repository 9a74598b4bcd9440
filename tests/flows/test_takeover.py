"""`kill -9` of a server whose models share replicas, and the next one over the same folder: it goes on with them."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import threading

import pytest

from serving import zoo
from serving.replica import limits
from tests.fakes import control_groups
from tests.fakes.adding import adding
from tests.fakes.killable import servers, wait_for

MODEL = """
import os
import pathlib
import time

class Model:
    '''Adds a number of its own; 99 takes some time, 98 does not end.'''
    inputs = outputs = [{"name": "x", "datatype": "INT32", "shape": [-1, 1]}]
    sample_inputs = {"x": [[1]]}

    def __init__(self):
        with pathlib.Path(%(log)r).open("a") as log:
            log.write(f"{os.getpid()} %(name)s\\n")

    def predict_batch(self, inputs):
        if (inputs["x"] == 99).any():
            time.sleep(0.7)
        if (inputs["x"] == 98).any():
            time.sleep(600)
        return {"x": inputs["x"] + %(number)s}
"""


@pytest.fixture(name="serve")
def _serve(tmp_path):
    """Starts servers over one folder; none is left at the end."""
    with servers(tmp_path, {"scheduling.policy": "clockwork"}) as serve:
        yield serve


@pytest.fixture(name="model")
def _model(tmp_path):
    """Makes models that note where they are loaded; `model.loaded(pids)` are the names that these have loaded."""

    def make(name, number):
        code = tmp_path / f"{name}.py"
        code.write_text(MODEL % {"log": str(tmp_path / "loads"), "name": name, "number": number})
        return f"{code}:Model"

    def loaded(pids):
        lines = [line.split() for line in (tmp_path / "loads").read_text().splitlines()]
        return sorted(name for pid, name in lines if int(pid) in pids)

    make.loaded = loaded
    return make


def stat(pid):
    """Fields of a process from its state on; none of one that has ended."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
    return [] if fields[0] in "ZX" else fields


def templates_of(pids):
    """The processes that replicas were forked from."""
    return {int(stat(pid)[1]) for pid in pids}


def traces(templates):
    """Directories and control groups of templates."""
    return [
        path
        for template in templates
        for path in (
            *pathlib.Path(tempfile.gettempdir()).glob(f"luthier-{template}-*"),
            *control_groups.named(f"luthier-{template}-*"),
        )
    ]


def is_gone(pids, templates):
    """Whether nothing of these is left."""
    return not any(map(stat, {*pids, *templates})) and not traces(templates)


def test_models_that_were_in_memory_stay_there(serve):
    """The same processes answer the same as before, and nothing is loaded; an orderly end leaves nothing."""
    names = ("gan", "mnist", "resnet")
    models = [word for name in names for word in ("--model", name)]
    settings = {"replica.count": 2}
    first = serve(*models, settings=settings)
    before = [first.ask_zeros(name) for name in names]
    pids = first.pids()
    templates = templates_of(pids)
    assert first.loads() >= len(names)
    first.kill()
    assert all(map(stat, pids)), "they outlive their server"
    assert not {path.name for path in traces(templates)} & {
        path.name for path in limits.cleanup_stale()
    }, "another server's start leaves them alone"
    second = serve(*models, settings=settings)
    assert second.pids() == pids
    assert [second.ask_zeros(name) for name in names] == before
    assert second.loads() == 0
    second.kill()
    third = serve(*models, settings=settings)
    assert third.pids() == pids
    assert [third.ask_zeros(name) for name in names] == before
    assert third.loads() == 0
    assert third.stop() == 0
    assert is_gone(pids, templates)


def test_nothing_waits_for_ever(serve):
    """When no server comes in time, processes, control groups and directories are removed."""
    server = serve("--model", "gan", settings={"clockwork.takeover_s": 1})
    server.ask_zeros("gan")
    pids = server.pids()
    templates = templates_of(pids)
    server.kill()
    assert all(map(stat, pids))
    wait_for(lambda: is_gone(pids, templates), "something is left")


@pytest.mark.parametrize(
    "settings", [{"clockwork.takeover_s": 0}, {"scheduling.policy": "adaptive"}]
)
def test_others_end_at_once_with_their_server(serve, settings):
    """Where it is off, and where no models share replicas; the next server starts its own."""
    first = serve("--model", "gan", settings=settings)
    pids = first.pids()
    templates = templates_of(pids)
    first.kill()
    wait_for(lambda: is_gone(pids, templates), "something is left")
    second = serve("--model", "gan", settings=settings)
    second.ask_zeros("gan")
    assert not second.pids() & pids


def test_what_has_changed_is_loaded_anew(serve, tmp_path):
    """A model's file: the rest is used as it is."""
    files = [tmp_path / f"{name}.onnx" for name in ("same", "changed", "gone")]
    models = [word for file in files for word in ("--model", str(file))]
    for file, name in zip(files, ("gan", "mnist", "resnet"), strict=True):
        shutil.copy(zoo.find(name).path, file)
    settings = {"clockwork.page_mb": 64, "clockwork.memory_mb": 3 * 64}  # room for these three
    first = serve(*models, settings=settings)
    same, before, _ = (first.ask_zeros(file.stem) for file in files)
    pids = first.pids()
    first.kill()
    shutil.copy(zoo.find("resnet").path, files[1])
    second = serve(*models[:4], settings=settings)
    assert second.pids() == pids
    assert second.ask_zeros("same") == same
    assert second.ask_zeros("changed") != before
    assert second.ask_zeros("same") == same, "what was loaded meanwhile has another number"
    assert second.request("GET", "/v2/models/gone")[0] == 404
    assert second.loads() == 1
    assert second.stop() == 0


def test_what_is_told_of_inputs_is_told_anew(serve, tmp_path):
    """Another item axis in `model.yaml`: what the same file was loaded with before is not trusted."""
    folder = tmp_path / "sums"
    folder.mkdir()
    adding(folder / "net.onnx", 1.0, items=8)
    card = "name: sums\nversion: '1'\nkind: onnx\nfile: net.onnx\n"
    (folder / "model.yaml").write_text(card)
    first = serve("--model", str(folder))
    before = first.ask_zeros("sums")
    pids = first.pids()
    first.kill()
    second = serve("--model", str(folder))
    assert (second.pids(), second.ask_zeros("sums"), second.loads()) == (pids, before, 0)
    second.kill()
    (folder / "model.yaml").write_text(card + "item_axis: {x: 0}\n")
    third = serve("--model", str(folder))
    assert (third.pids(), third.ask_zeros("sums"), third.loads()) == (pids, before, 1)
    assert third.stop() == 0


def test_what_is_kept_is_what_the_file_holds(serve, tmp_path, monkeypatch):
    """A form of the old file was loaded after the file had been replaced: it is not taken for the new one's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = adding(tmp_path / "m.onnx", 1.0, items=8)
    first = serve("--model", str(file))
    adding(tmp_path / "new", 2.0, items=8).rename(file)
    assert first.ask_zeros("m")[0]["data"] == [1.0] * 8
    first.kill()
    second = serve("--model", str(file))
    assert second.ask_zeros("m")[0]["data"] == [2.0] * 8
    second.kill()
    third = serve("--model", str(file))
    assert third.ask_zeros("m")[0]["data"] == [2.0] * 8
    assert third.loads() == 0
    assert third.stop() == 0


@pytest.mark.parametrize("form", ["a file", "a module"])
def test_code_that_has_changed_is_imported_anew(serve, model, tmp_path, monkeypatch, form):
    """And with it what it imports, which no process would import twice: another replica takes its place."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    code, helper = tmp_path / "taken_code.py", tmp_path / "taken_helper.py"

    def write(number):
        helper.write_text(f"NUMBER = {number}\n")
        text = pathlib.Path(model("code", "taken_helper.NUMBER").partition(":")[0]).read_text()
        code.write_text(f"import taken_helper  # {number}\n{text}")

    write(1)
    where = code if form == "a file" else code.stem
    models = ["--model", model("same", 5), "--model", f"{where}:Model"]
    first = serve(*models)
    (name,) = {*first.models} - {"same"}
    assert (first.ask("same"), first.ask(name)) == (6, 2)
    pids = first.pids()
    templates = templates_of(pids)
    first.kill()
    write(1000)
    second = serve(*models)
    assert (second.ask("same"), second.ask(name)) == (6, 1001)
    now = second.pids()
    assert len(now) == 1
    assert not now & pids
    assert templates_of(now) == templates, "others are forked from where these were"
    assert second.stop() == 0
    assert is_gone(pids | now, templates)


def test_an_error_output_that_nobody_reads_any_more(serve, tmp_path):
    """Whatever prints would fail there: replicas that were taken over, and new ones, write to the next server's."""
    code = tmp_path / "m.py"
    text = MODEL % {"log": str(tmp_path / "loads"), "name": "m", "number": 1}
    code.write_text(
        text.replace("        return", "        print('seen', flush=True)\n        return")
    )
    first = serve("--model", f"{code}:Model", stderr=subprocess.PIPE)
    assert first.ask("m") == 2
    (pid,) = first.pids()
    first.kill()
    first.process.stderr.close()
    second = serve("--model", f"{code}:Model")
    assert second.pids() == {pid}
    before = (tmp_path / "log").read_text().count("seen")
    assert second.ask("m") == 2
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: second.pids() - {pid}, "it is replaced")
    assert second.ask("m") == 2
    assert (tmp_path / "log").read_text().count("seen") >= before + 2
    assert second.stop() == 0


def test_a_replica_that_ends_meanwhile_is_replaced(serve, model):
    """The other one is used, and the models answer."""
    card = model("m", 1)
    first = serve("--model", card, settings={"replica.count": 2})
    assert first.ask("m") == 2
    pids = first.pids()
    templates = templates_of(pids)
    first.kill()
    victim = next(pid for pid in pids if model.loaded({pid}))
    os.kill(victim, signal.SIGKILL)
    second = serve("--model", card, settings={"replica.count": 2})
    now = second.pids()
    assert len(now) == 2
    assert now & pids == pids - {victim}
    assert second.ask("m") == 2
    assert second.stop() == 0
    assert is_gone(pids | now, templates)


def test_other_settings_get_other_replicas(serve, model):
    """What is left ends: it is not as the settings would have it."""
    card = model("m", 1)
    first = serve("--model", card)
    pids = first.pids()
    templates = templates_of(pids)
    first.kill()
    second = serve("--model", card, settings={"clockwork.memory_mb": 8})
    assert second.ask("m") == 2
    assert not second.pids() & pids
    wait_for(lambda: not any(map(stat, pids)), "a replica is left that nobody uses")
    assert second.stop() == 0
    assert is_gone(pids, templates)


def test_replicas_that_settings_do_without_are_not_waited_for(serve, model, tmp_path):
    """They end before the models are loaded, which may take long."""
    card = model("m", 1)
    first = serve("--model", card)
    (pid,) = first.pids()
    first.kill()
    looks = tmp_path / "looks.py"
    look = f"pathlib.Path({str(tmp_path / 'seen')!r}).open('a').write(f'{{os.path.exists(\"/proc/{pid}\")}} ')"
    text = MODEL % {"log": str(tmp_path / "loads"), "name": "looks", "number": 1}
    looks.write_text(
        text.replace("    def __init__(self):", f"    def __init__(self):\n        {look}")
    )
    second = serve(
        "--model", card, "--model", f"{looks}:Model", settings={"clockwork.memory_mb": 8}
    )
    assert (tmp_path / "seen").read_text().split()[0] == "False"
    assert second.stop() == 0


def test_a_model_that_fails_costs_only_itself(serve, model, tmp_path):
    """Where it is the first of a folder, the replicas wait for the others."""
    for name, number in (("aaa", "broken"), ("bbb", 2), ("ccc", 3)):
        folder = tmp_path / "models" / name / "1"
        folder.mkdir(parents=True)
        pathlib.Path(model(name, number).partition(":")[0]).rename(folder / "model.py")
    broken = tmp_path / "models" / "aaa" / "1" / "model.py"
    broken.write_text("raise ValueError('broken')")
    arguments = ("--model", "gan", "--model-repository", str(tmp_path / "models"))
    first = serve(*arguments)
    assert (first.ask("bbb"), first.ask("ccc")) == (3, 4)
    pids = first.pids()
    first.kill()
    second = serve(*arguments)
    assert second.pids() == pids
    assert (second.ask("bbb"), second.ask("ccc")) == (3, 4)
    assert second.loads() == 0
    second.kill()
    for name in ("bbb", "ccc"):
        shutil.copy(broken, tmp_path / "models" / name / "1" / "model.py")
    third = serve(*arguments)
    (onnx,) = third.pids()
    assert not any(map(stat, pids - {onnx})), "all of their kind have failed"
    assert third.stop() == 0


def test_several_kinds_and_what_was_deployed_later(serve, model):
    """All that was served is served on, each kind by its own replicas."""
    arguments = ("--model", "gan", "--model", model("m", 1))
    first = serve(*arguments)
    late = {"model": model("late", 5), "name": "late", "version": "1"}
    status, answer = first.request("POST", "/admin/models", late, admin=True)
    assert status < 300, answer
    before = first.ask_zeros("gan")
    assert (first.ask("m"), first.ask("late")) == (2, 6)
    pids = first.pids()
    assert len(pids) == 2
    first.kill()
    second = serve(*arguments)
    assert second.pids() == pids
    assert second.ask_zeros("gan") == before
    assert (second.ask("m"), second.ask("late")) == (2, 6)
    assert second.loads() == 0
    assert second.stop() == 0


def test_limits_are_set_anew(serve, model):
    """Those of the replicas that are taken over, and told to the server after the next."""
    card = model("m", 1)
    first = serve("--model", card, settings={"replica.cpu": 0.5})
    pids = first.pids()
    templates = templates_of(pids)
    if not quotas(templates):
        pytest.skip("limits are not enforced here")
    assert quotas(templates) == [50_000]
    first.kill()
    for _ in range(2):
        server = serve("--model", card, settings={"replica.cpu": 0.25})
        assert server.pids() == pids
        assert quotas(templates) == [25_000]
        server.kill()


def quotas(templates):
    """CPU time per 100 ms that the replicas of templates may use, in microseconds."""
    return [
        int(file.read_text().split()[0])
        for root in traces(templates)
        for name in ("cpu.max", "cpu.cfs_quota_us")
        for file in root.glob(f"replica-*/{name}")
    ]


def test_replicas_of_one_model_end_with_their_server(serve, model):
    """Whatever they are at, and though those that models share, of the same kind, stay."""
    models = ["--model", model("m", 1), "--model", model("own", 5)]
    settings = {"models.own.scheduling.policy": "adaptive"}
    first = serve(*models, settings=settings)
    assert (first.ask("m"), first.ask("own")) == (2, 6)
    (own,) = first.pids("own")
    (shared,) = first.pids() - {own}
    assert templates_of({own}) == templates_of({shared})
    with pytest.raises(OSError), concurrently(first.kill, 0.2):
        first.ask("own", 98)
    wait_for(lambda: not stat(own), "it hangs on")
    assert stat(shared)
    second = serve(*models, settings=settings)
    assert shared in second.pids()
    assert (second.ask("m"), second.ask("own")) == (2, 6)
    assert second.stop() == 0


def test_a_template_that_is_killed_meanwhile(serve, model, tmp_path):
    """Its replicas end with it; the next server says so in a line, cleans up, and starts anew."""
    card = model("m", 1)
    first = serve("--model", card)
    pids = first.pids()
    templates = templates_of(pids)
    first.kill()
    assert traces(templates)  # later another test's clean-up may have come first
    for template in templates:
        os.kill(template, signal.SIGKILL)
    wait_for(lambda: not any(map(stat, pids)), "a replica outlived its template")
    second = serve("--model", card)
    assert second.ask("m") == 2
    assert is_gone(pids, templates)
    log = (tmp_path / "log").read_text()
    assert log.count('"nothing is taken over"') == 1
    assert second.stop() == 0


def test_a_batch_that_runs_meanwhile(serve, model):
    """It ends, nobody gets its result, and the replica comes back with its models."""
    card = model("m", 1)
    first = serve("--model", card)
    assert first.ask("m") == 2
    pids = first.pids()
    with pytest.raises(OSError), concurrently(first.kill, 0.2):
        first.ask("m", 99)
    second = serve("--model", card)
    assert second.pids() == pids
    assert second.ask("m") == 2
    assert second.loads() == 0
    assert second.stop() == 0


def test_a_replica_that_hangs_is_not_waited_for(serve, model):
    """The next server is there in seconds, with another replica."""
    card = model("m", 1)
    first = serve("--model", card)
    assert first.ask("m") == 2
    pids = first.pids()
    with pytest.raises(OSError), concurrently(first.kill, 0.2):
        first.ask("m", 98)
    second = serve("--model", card)
    assert not second.pids() & pids
    assert second.ask("m") == 2
    wait_for(lambda: not any(map(stat, pids)), "it hangs on")
    assert second.stop() == 0


@contextlib.contextmanager
def concurrently(work, after_s):
    """Do something in a thread after a while."""
    thread = threading.Timer(after_s, work)
    thread.start()
    try:
        yield
    finally:
        thread.join()
