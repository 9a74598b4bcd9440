"""What this machine is called where measurements are compared: those of another processor tell little."""

from __future__ import annotations

import functools
import hashlib
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


_KINDS_OF = (
    *("vendor_id", "cpu family", "model", "model name", "stepping", "flags"),
    *("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision", "Features"),
)


@functools.cache
def cpu_digest() -> str:
    """The same for two processors that can do the same: of one model by its numbers, with the same features.

    One name covers several of them, and a virtual machine hides features.
    """
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    facts = {line for line in lines if line.split(":", 1)[0].strip() in _KINDS_OF}
    return hashlib.sha256("\n".join([cpu_model(), *sorted(facts)]).encode()).hexdigest()
