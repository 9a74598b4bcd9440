"""What is of others is named, with its licence, and goes along with what is installed."""

import fnmatch
import pathlib
import tomllib

ROOT = pathlib.Path(__file__).parents[1]
NOTICE = (ROOT / "NOTICE").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PACKAGED = ("serving", "tuner")
DATA = (".npz", ".onnx", ".txt", ".json", ".proto", ".csv", ".gz", ".png", ".jpg", ".bin")
LICENCES = "LICENSE-*.txt"


def files(*folders: str) -> list[str]:
    """Files below these folders."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file())
    return [path.relative_to(ROOT).as_posix() for path in found]


def patterns() -> list[str]:
    """Paths, or globs of them, that the notice names."""
    words = (word.rstrip(",:") for word in NOTICE.split())
    return [word for word in words if "/" in word and not word.startswith("http")]


def test_every_data_file_in_the_package_is_in_the_notice() -> None:
    """Samples, weights, vocabularies and interfaces: whose they are is said of each."""
    named = patterns()
    for name in files(*PACKAGED):
        base = pathlib.PurePath(name).name
        if not name.endswith(DATA) or fnmatch.fnmatch(base, LICENCES):
            continue
        assert any(fnmatch.fnmatch(name, one) for one in named), f"{name} is not in NOTICE"


def test_every_licence_goes_along() -> None:
    """The build takes the notice and every licence there is; each of its globs finds something."""
    globs = PROJECT["license-files"]
    taken = {path.relative_to(ROOT).as_posix() for glob in globs for path in ROOT.glob(glob)}
    assert all(list(ROOT.glob(glob)) for glob in globs)
    there = {name for name in files(*PACKAGED, "compiled") if "/LICENSE" in name}
    assert taken == there | {"LICENSE", "NOTICE"}
    for name in there:
        assert name in NOTICE


def test_the_expression_names_the_licences_of_the_notice() -> None:
    """No more and no fewer: what a licence review reads first is true."""
    words = {word.rstrip(",:;)").lstrip("(") for word in NOTICE.replace("MIT.", "MIT").split()}
    known = {"Apache-2.0", "BSD-3-Clause", "CC-BY-SA-3.0", "MIT", "PSF-2.0"}
    assert set(PROJECT["license"].split(" AND ")) == words & known
