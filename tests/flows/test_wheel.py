"""What a user installs: the wheel, in an empty environment, from another folder."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import venv
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
TIMEOUT_S = 540


def run(
    command: list[str | pathlib.Path], *, cwd: pathlib.Path, timeout_s: float = TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """Run to the end; what it said is kept."""
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    done = run([sys.executable, "-m", "build", "--wheel", "--outdir", folder, ROOT], cwd=folder)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (built,) = folder.glob("luthier-*.whl")
    return built


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
def test_the_wheel_holds_the_bundled_models_and_spaces(wheel: pathlib.Path) -> None:
    """Weights, samples, cards and search spaces are inside; tests and training data are not."""
    names = set(zipfile.ZipFile(wheel).namelist())
    for card in (ROOT / "serving" / "zoo").rglob("model.yaml"):
        assert card.relative_to(ROOT).as_posix() in names
    for space in (ROOT / "search_spaces").glob("*.yaml"):
        assert f"tuner/space/bundled/{space.name}" in names
    assert "serving/zoo/resnet/model.onnx" in names
    assert "serving/zoo/samples.npz" in names
    assert not [name for name in names if name.startswith(("tests/", "runs/", "benchmarks/"))]


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
def test_the_wheel_tunes_from_another_folder(wheel: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """In an empty environment, `tune` finishes a short study and leaves its files there."""
    venv.create(tmp_path / "env", with_pip=True)
    binaries = tmp_path / "env" / "bin"
    pip = [binaries / "python", "-m", "pip", "--disable-pip-version-check", "--quiet"]
    done = run([*pip, "install", wheel], cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    command = [binaries / "tune", "--model", "resnet", "--concurrency", "20", "--trials", "4"]
    done = run([*command, "--pairs", "2", "--study", "first", "--json"], cwd=elsewhere)
    assert done.returncode == 0, done.stderr[-4000:]
    assert isinstance(json.loads(done.stdout), dict)
    folder = elsewhere / "runs" / "first"
    there = {path.name for path in folder.iterdir()}
    assert {"study.db", "settings.yaml", "environment.json", "best.yaml", "report.html"} <= there
    assert (folder / "trials").is_dir()
