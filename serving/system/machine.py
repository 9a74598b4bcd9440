"""Identify this machine's processor, so that measurements are compared on equal ones."""

from __future__ import annotations

import functools
import hashlib
import pathlib
import platform


@functools.cache
def cpu_model() -> str:
    """Return the kernel's name of the processor, or `unknown`."""
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
    """Return a digest, equal for processors with the same model numbers and features.

    One name covers several models, and virtual machines hide features.
    """
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    facts = {line for line in lines if line.split(":", 1)[0].strip() in _KINDS_OF}
    return hashlib.sha256("\n".join([cpu_model(), *sorted(facts)]).encode()).hexdigest()
