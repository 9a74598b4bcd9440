"""Hatchling's hook: with LUTHIER_COMPILE=1 a wheel holds the compiled request path beside its source.

    LUTHIER_COMPILE=1 pip install .

Without it, and in an editable installation, nothing is compiled and no compiler is needed.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledHook(BuildHookInterface[Any]):
    """Adds the libraries to a wheel; the checkout stays as it is."""

    def dependencies(self) -> list[str]:
        """What the build needs beside hatchling."""
        if not _is_wanted():
            return []
        return ["mypy>=1.19", "setuptools", "numpy", "httptools"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, where it is asked for."""
        if version == "editable" or not _is_wanted():
            return
        self._folder = tempfile.TemporaryDirectory()
        tree = pathlib.Path(self._folder.name) / "tree"
        script = pathlib.Path(self.root) / "compiled" / "build.py"
        subprocess.run([sys.executable, script, tree, "serving", "tuner"], check=True)
        for path in tree.rglob("*.so"):
            build_data["force_include"][str(path)] = str(path.relative_to(tree))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """The libraries are in the wheel."""
        del version, build_data, artifact_path
        if hasattr(self, "_folder"):
            self._folder.cleanup()


def _is_wanted() -> bool:
    return os.environ.get("LUTHIER_COMPILE", "0") not in {"", "0"}
