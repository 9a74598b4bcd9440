"""`tune confirm` of a real study against a real server: the verdict, and what is refused."""

from __future__ import annotations

import json
import pathlib
import shutil
import socket
from collections.abc import Iterator

import pytest
import yaml

from serving.system.cgroups import manager
from serving.system.secret_variables import ADMIN_TOKEN_VARIABLE
from tests.fakes.commands import Done, tune
from tuner.cli.commands.confirm import EXIT_CODES
from tuner.launching.engine_process import LuthierProcess
from tuner.store.run_folder import RunFolder
from tuner.values.configuration import Configuration

LIMITED = manager.probe()
SPACE = """
name: two
knobs:
  batching.timeout_us: {type: int, choices: [3000, 24000], default: 24000, unit: us}
  batching.max_size: {type: int, choices: [8], default: 8, unit: items}
"""
"""The default waits for a batch that never fills: the other is better, whatever the machine does."""
LOAD = ("--model", "echo", "--concurrency", "4", "--seconds", "0.4", "--warmup", "0.1")
BUDGET = ("--trials", "2", "--initial", "2", "--sampler", "random", "--pairs", "3")
WIDE = ("--margin", "0.9", "--repeats", "2")


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with a finished study `s`, measured as a pod where that can be."""
    folder = tmp_path_factory.mktemp("confirm")
    (folder / "space.yaml").write_text(SPACE, encoding="utf-8")
    whole = ("--for", "kubernetes") if LIMITED.kind else ()
    done = tune(folder, *LOAD, *BUDGET, *whole, "--space", "space.yaml", "--study", "s")
    assert done.code == 0, done.err
    assert LIMITED.kind is None or "limits: of the whole server" in done.err
    return folder


@pytest.fixture(scope="module", name="server")
def _server(folder: pathlib.Path) -> Iterator[LuthierProcess]:
    """The study's recommendation, as it is served."""
    best = yaml.safe_load((folder / "runs" / "s" / "best.yaml").read_text(encoding="utf-8"))
    batching = {f"batching.{name}": value for name, value in best["batching"].items()}
    always = {f"replica.{name}": value for name, value in best.get("replica", {}).items()}
    with LuthierProcess.start("echo", Configuration(batching), always=always) as started:
        yield started


def url_of(server: LuthierProcess) -> str:
    """Address of the inference port."""
    return f"http://{server.host}:{server.port}"


def confirm(folder: pathlib.Path, *arguments: str) -> Done:
    """Run the command on the study."""
    return tune(folder, "confirm", "s", *arguments)


def test_an_export_is_confirmed_where_it_runs(folder: pathlib.Path, server: LuthierProcess) -> None:
    """The verdict is printed, added to the study, and shown by its report."""
    done = confirm(folder, "--url", url_of(server), *WIDE, "--json")
    answer = json.loads(done.out)
    found = answer["confirmation"]
    assert done.code == EXIT_CODES[found["outcome"]], done.err
    assert found["interval"]["low"] < found["ratio"] < found["interval"]["high"]
    assert 0.3 < found["ratio"] < 3  # it waits as long in every batch
    assert len(found["evaluations"]) == 2
    assert found["checked"] == [
        "the model's inputs and outputs",
        "batching.max_size, batching.timeout_us",
    ]
    assert found["unchecked"] == ["the limits of its container"]
    report = tune(folder, "report", "s")
    assert f" UTC, {url_of(server)}: {found['text'][:40]}" in report.out
    page = (folder / "runs" / "s" / "report.html").read_text(encoding="utf-8")
    assert "Where it runs (tune confirm)" in page
    assert f" UTC, {url_of(server)}: " in page


def test_the_admin_port_tells_all_settings(
    folder: pathlib.Path, server: LuthierProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its token; without, the error says where the token is expected."""
    admin = ("--admin", f"http://{server.host}:{server.admin.port}")
    refused = confirm(folder, "--url", url_of(server), *admin, *WIDE)
    assert refused.code == 2
    assert f"its token is expected in {ADMIN_TOKEN_VARIABLE}" in refused.err
    token = pathlib.Path(server.facts.admin_token_file or "").read_text(encoding="ascii").strip()
    monkeypatch.setenv(ADMIN_TOKEN_VARIABLE, token)
    done = confirm(folder, "--url", url_of(server), *admin, *WIDE, "--json")
    checked = json.loads(done.out)["confirmation"]["checked"]
    assert "batching.timeout_us" in checked[1]
    assert checked[2] == "all other settings of its model"


def test_loads_that_ran_elsewhere_are_judged(folder: pathlib.Path, server: LuthierProcess) -> None:
    """As a Job's, whose log holds a line for each evaluation, and others."""
    load = ("load", url_of(server), *LOAD[:-2], "--warmup", "0.1", "--json")
    lines = [tune(folder, *load).out for _ in range(2)]
    (folder / "loads.jsonl").write_text("starting\n" + "".join(lines), encoding="utf-8")
    done = confirm(folder, "--measured", "loads.jsonl", "--margin", "0.9", "--json")
    found = json.loads(done.out)["confirmation"]
    assert 0.3 < found["ratio"] < 3
    assert found["checked"] == []
    assert found["unchecked"] == ["the model", "the configuration", "the limits of its container"]
    slower = [json.loads(line) for line in lines]
    for one in slower:
        one["mean_ms"] *= 1000
    (folder / "loads.jsonl").write_text("\n".join(map(json.dumps, slower)), encoding="utf-8")
    worse = confirm(folder, "--measured", "loads.jsonl", "--margin", "0.9")
    assert worse.code in {EXIT_CODES["worse"], EXIT_CODES["undecided"]}  # two vary much


def test_what_the_load_cannot_see_is_not_checked_and_constraints_are(
    folder: pathlib.Path, server: LuthierProcess
) -> None:
    """A second objective of the server's processes is left out; a violated constraint is worse."""
    other = folder / "costs" / "s"
    shutil.copytree(folder / "runs" / "s", other)
    settings = (other / "settings.yaml").read_text(encoding="utf-8")
    study = yaml.safe_load(settings)
    study["measurement"]["objective"] = "mean,cpu"
    study["measurement"]["constraints"] = ["mean_ms <= 0.01", "peak_memory_mb <= 500"]
    head = settings.partition("\n")[0]
    (other / "settings.yaml").write_text(f"{head}\n{yaml.safe_dump(study)}", encoding="utf-8")
    done = confirm(folder, "--runs-dir", "costs", "--url", url_of(server), *WIDE, "--json")
    assert done.code == EXIT_CODES["worse"], done.err
    found = json.loads(done.out)["confirmation"]
    assert [one["outcome"]["status"] for one in found["evaluations"]] == ["ok", "ok"]
    assert found["unchecked"][-2:] == [
        "the objective cpu",
        "the constraint peak_memory_mb <= 500",
    ]
    assert found["text"].startswith("Worse than in the study: mean of ")
    assert " is above the limit of 0.01 ms (--constraint); mean latency " in found["text"]


def test_the_job_sends_the_load_of_the_study(folder: pathlib.Path, server: LuthierProcess) -> None:
    """The command in the manifest is one that runs, and loads as the study did."""
    done = confirm(folder, "--job", "--url", url_of(server), "--repeats", "3")
    assert done.code == 0, done.err
    job = yaml.safe_load(done.out)
    (loader,) = job["spec"]["template"]["spec"]["containers"]
    shell, option, script = loader["command"]
    assert (shell, option) == ("sh", "-c")
    assert script.startswith("for i in $$(seq 3); do python3 -m tuner load ")
    words = script.partition("tuner ")[2].partition(" ${")[0].split()
    ran = tune(folder, *words)
    assert ran.code == 0, ran.err
    measured = json.loads(ran.out)
    assert measured["concurrency"] == 4
    asked_s = float(words[words.index("--seconds") + 1])
    assert measured["seconds"] == pytest.approx(asked_s, rel=0.2)
    assert asked_s >= 0.4


def test_another_server_is_refused(folder: pathlib.Path, server: LuthierProcess) -> None:
    """Another configuration, another model or none, nothing at all: one line each, and nothing saved."""
    path = folder / "runs" / "s" / "confirmations.json"
    before = path.read_text(encoding="utf-8") if path.exists() else None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        silent = f"http://127.0.0.1:{probe.getsockname()[1]}"
        for arguments, said in (
            (("--url", url_of(server), "--trial", "0"), "the server has another configuration: "),
            (("--url", f"{url_of(server)}/v2/models/resnet"), "does not serve the model resnet"),
            (("--url", silent), "nothing listens there"),
            (("--url", "ftp://127.0.0.1"), "expected http://HOST"),
            (("--url", f"{url_of(server)}/page"), "expected a server or model"),
            (("--measured", "space.yaml"), "holds no measurement"),
            (("--measured", "nowhere"), "No such file"),
            ((), "nothing to measure: give --url URL"),
            (("--job", "--admin", url_of(server)), "not allowed with --job"),
            (("--url", silent, "--repeats", "1"), "expected a whole number from 2"),
        ):
            done = confirm(folder, *arguments)
            assert done.code == 2, done.err
            (line,) = [one for one in done.err.splitlines() if one.startswith("tune: ")]
            assert said in line
    assert before == (path.read_text(encoding="utf-8") if path.exists() else None)


def test_another_model_of_the_same_name_is_refused(folder: pathlib.Path) -> None:
    """What its signature tells."""
    (folder / "echo.py").write_text("def echo(items):\n    return items\n", encoding="utf-8")
    with LuthierProcess.start(str(folder / "echo.py:echo"), is_trusted=True) as other:
        done = confirm(folder, "--url", url_of(other))
    assert done.code == 2
    assert "serves another model: its inputs are input FP32" in done.err


def test_two_kinds_of_limits_are_refused(folder: pathlib.Path) -> None:
    """A system that limits the whole, and limits of each replica: one line, before anything starts."""
    done = tune(folder, *LOAD, "--for", "compose", "--limits", "each")
    assert done.code == 2
    assert "--for compose: limits the whole server, so --limits each is not allowed" in done.err


def test_a_study_that_runs_is_not_confirmed(folder: pathlib.Path, server: LuthierProcess) -> None:
    """Refused before anything is measured; without it, others may hold the study meanwhile."""
    with RunFolder(folder / "runs", "s").hold_lock():
        done = confirm(folder, "--url", url_of(server), *WIDE)
    assert done.code == 1
    assert "study 's' is in use by process" in done.err
    assert "the same as in the study" not in done.err


def test_an_unfinished_study_has_nothing_to_confirm(folder: pathlib.Path) -> None:
    """It says how to finish it."""
    verdict = folder / "runs" / "s" / "verdict.json"
    aside = verdict.rename(folder / "aside")
    try:
        done = confirm(folder, "--url", "http://127.0.0.1:1")
    finally:
        aside.rename(verdict)
    assert done.code == 2
    assert (
        "is not finished, so nothing of it is exported yet: resume it with `tune resume s`"
        in done.err
    )
