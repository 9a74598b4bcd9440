"""What this machine is called where measurements are compared: those of another processor tell little."""

from __future__ import annotations

import functools
import pathlib
import platform


@functools.cache
def cpu_model() -> str:
    """The processor's name, as the kernel has it; `unknown` where nothing tells it."""
    unnamed = platform.processor() or "unknown"
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return unnamed
    names = (
        line.split(":", 1)[1].strip()
        for line in lines
        if line.lower().startswith(("model name", "hardware"))
    )
    return next(names, unnamed)
