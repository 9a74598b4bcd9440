"""Installs the peers of the benchmarks, each into a virtual environment of its own.

    python benchmarks/peers/install.py [NAME ...] [--folder benchmarks/.peers]

What they need contradicts one another, and none of it is needed to use or test Luthier. All five take
about 1.7 GB and, with an empty cache, five to ten minutes. `LUTHIER_PEERS` names another folder, here
and in the benchmarks. An environment whose requirements have not changed is left as it is.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys
import venv

HERE = pathlib.Path(__file__).resolve().parent
DEFAULT = HERE.parent / ".peers"
TIMEOUT_S = 900.0


def names() -> list[str]:
    """Every peer that has a file of requirements."""
    files = HERE.glob("requirements-*.txt")
    return sorted(file.stem.removeprefix("requirements-") for file in files)


def install(name: str, folder: pathlib.Path) -> str | None:
    """Make or renew one environment; what went wrong, or none."""
    requirements = HERE / f"requirements-{name}.txt"
    done = folder / name / "requirements.txt"  # written last: a broken install is tried again
    if done.exists() and done.read_text() == requirements.read_text():
        return None
    if not (folder / name / "bin" / "python").exists():
        venv.create(folder / name, with_pip=True)
    command = [str(folder / name / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    command += ["--disable-pip-version-check", "--requirement", str(requirements)]
    try:
        failed = subprocess.run(command, check=False, timeout=TIMEOUT_S).returncode
    except subprocess.TimeoutExpired:
        return f"took longer than {TIMEOUT_S:.0f} s"
    if failed:
        return "pip failed; what it said stands above"
    done.write_text(requirements.read_text())
    return None


def main() -> int:
    """Install what is asked for; 1 when any of it failed."""
    parser = argparse.ArgumentParser(description="Install the peers of the benchmarks.")
    parser.add_argument("peers", nargs="*", metavar="NAME", help=f"of {', '.join(names())}")
    parser.add_argument(
        "--folder",
        type=pathlib.Path,
        default=os.environ.get("LUTHIER_PEERS", DEFAULT),
        help="default: LUTHIER_PEERS, or benchmarks/.peers",
    )
    options = parser.parse_args()
    unknown = set(options.peers) - set(names())
    if unknown:
        parser.error(f"unknown peers {', '.join(sorted(unknown))}; of {', '.join(names())}")
    folder = pathlib.Path(options.folder).absolute()
    problems = 0
    for name in options.peers or names():
        print(f"{name}: installing into {folder / name}", flush=True)
        if problem := install(name, folder):
            problems += 1
            print(f"{name}: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
