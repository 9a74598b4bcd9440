"""What users install: each file of a release, in an empty environment, away from the checkout.

`make release` builds the files and names their folder in LUTHIER_RELEASE.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import urllib.request
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parents[2]
FILES = sorted(pathlib.Path(os.environ.get("LUTHIER_RELEASE", "/")).glob("luthier-*"))
TIMEOUT_S = 540
IS_MEANT = "LUTHIER_RELEASE" in os.environ
NAMES = ("-py3-none-any.whl", ".tar.gz", "manylinux")
"""What tells the files of a release apart."""
RAY = "ray>=2.56"

pytestmark = [
    pytest.mark.skipif(not IS_MEANT, reason="make release builds what is tried"),
    pytest.mark.timeout(TIMEOUT_S),
]


def run(command: list[str | pathlib.Path], *, cwd: pathlib.Path) -> str:
    """Run to the end, which must be a good one; returns what it printed."""
    words = [str(word) for word in command]
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        words,
        cwd=cwd,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, f"{words}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def environment(folder: pathlib.Path, *requirements: str | pathlib.Path) -> pathlib.Path:
    """The programs of a new environment into which these were installed, one after another."""
    programs = folder / "env" / "bin"
    if uv := os.environ.get("UV"):
        links = [f"--find-links={place}" for place in os.environ.get("PIP_FIND_LINKS", "").split()]
        run([uv, "venv", "--python", sys.executable, programs.parent], cwd=folder)
        install: list[str | pathlib.Path] = [
            uv,
            "pip",
            "install",
            *links,
            "--python",
            programs / "python",
        ]
    else:
        run([sys.executable, "-m", "venv", programs.parent], cwd=folder)
        install = [programs / "python", "-m", "pip", "install"]
    for requirement in requirements:
        run([*install, "--quiet", requirement], cwd=folder)
    return programs


@pytest.fixture(scope="module", params=FILES, ids=lambda path: path.name)
def installed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[pathlib.Path, pathlib.Path]:
    """A file of the release, and the programs of an environment that holds nothing else."""
    return request.param, environment(tmp_path_factory.mktemp("empty"), request.param)


def test_a_release_has_every_file() -> None:
    """The source archive, the wheel of pure Python, and a compiled one."""
    assert [[name in path.name for path in FILES].count(True) for name in NAMES] == [1, 1, 1]


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.suffix == ".whl"], ids=lambda path: path.name
)
def test_a_wheel_holds_what_comes_with_the_code(path: pathlib.Path) -> None:
    """Weights, samples, cards, search spaces and engine files are inside; tests and what trains models are not."""
    names = set(zipfile.ZipFile(path).namelist())
    for card in (ROOT / "serving" / "zoo").rglob("model.yaml"):
        assert card.relative_to(ROOT).as_posix() in names
    for space in (ROOT / "search_spaces").glob("*.yaml"):
        assert f"tuner/space/bundled/{space.name}" in names
    assert {"serving/zoo/resnet/model.onnx", "serving/zoo/samples.npz"} <= names
    assert {"tuner/engines/files/mosec/engine.yaml", "tuner/engines/files/triton/start.py"} <= names
    left_out = ("tests/", "runs/", "benchmarks/", "zoo/")
    assert not [name for name in names if name.startswith(left_out)]


def test_it_serves(installed: tuple[pathlib.Path, pathlib.Path], tmp_path: pathlib.Path) -> None:
    """In the form of the file; a request is answered, and a signal ends it in order."""
    path, programs = installed
    form = "compiled" if NAMES[2] in path.name else "python"
    python = programs / "python"
    assert f"({form})" in run([python, "-m", "serving", "--version"], cwd=tmp_path)
    server = subprocess.Popen(
        [python, "-m", "serving", "--model", "resnet", "--port", "0"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        assert line, server.communicate(timeout=10)[1]
        image = {"name": "image", "datatype": "UINT8", "shape": [1, 3, 32, 32], "data": [7] * 3072}
        with urllib.request.urlopen(
            f"http://127.0.0.1:{json.loads(line)['port']}/v2/models/resnet/infer",
            json.dumps({"inputs": [image]}).encode(),
            timeout=60,
        ) as answer:
            (output,) = json.load(answer)["outputs"]
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=30)
    assert output["shape"] == [1, 10]
    assert server.returncode == 0


def test_it_tunes(installed: tuple[pathlib.Path, pathlib.Path], tmp_path: pathlib.Path) -> None:
    """A short study ends with its files, where it was started, and can be read as tables."""
    _, programs = installed
    command = [programs / "tune", "--model", "resnet", "--concurrency", "8", "--trials", "2"]
    load = ["--seconds", "0.4", "--warmup", "0.1", "--pairs", "2", "--study", "first"]
    said = json.loads(run([*command, *load, "--json"], cwd=tmp_path))
    assert said["trials"] == 2
    folder = tmp_path / "runs" / "first"
    there = {path.name for path in folder.iterdir()}
    assert {"study.db", "settings.yaml", "environment.json", "best.yaml", "report.html"} <= there
    code = "import tuner; print(len(tuner.load('first').trials()))"
    assert run([programs / "python", "-c", code], cwd=tmp_path).strip() == "2"


@pytest.mark.parametrize("is_ray_first", [False, True], ids=["ray last", "ray first"])
def test_it_goes_on_beside_ray(is_ray_first: bool, tmp_path: pathlib.Path) -> None:
    """Ray has a `tune` and a `serve` of its own, and what comes last stays; `luthier` is ours in any order."""
    (wheel,) = (path for path in FILES if path.name.endswith(NAMES[0]))
    order = [RAY, wheel] if is_ray_first else [wheel, RAY]
    programs = environment(tmp_path, *order)
    assert {"luthier", "ray", "serve", "tune"} <= {path.name for path in programs.iterdir()}
    assert ("ray.tune" in (programs / "tune").read_text(encoding="utf-8")) is not is_ray_first
    for words in ([], ["tune"], ["serve"]):
        said = run([programs / "luthier", *words, "--help"], cwd=tmp_path)
        assert said.startswith(f"usage: {' '.join(['luthier', *words])} ")
