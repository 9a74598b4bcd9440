"""Identity of this machine's processor, as measurements from different kinds are not comparable."""

from __future__ import annotations

import functools
import hashlib
import pathlib
import platform


@functools.cache
def _cpu_lines() -> list[str]:
    try:
        return pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def cpu_model() -> str:
    """Return the kernel's name for the processor, or `unknown`."""
    for line in _cpu_lines():
        if line.lower().startswith(("model name", "hardware")):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


_KINDS_OF = (
    *("vendor_id", "cpu family", "model", "model name", "stepping", "flags"),
    *("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision", "Features"),
)


@functools.cache
def cpu_digest() -> str:
    """Return a digest that processors with the same model numbers and features share.

    One name covers several models, and virtual machines hide features.
    """
    facts = {line for line in _cpu_lines() if line.split(":", 1)[0].strip() in _KINDS_OF}
    return hashlib.sha256("\n".join([cpu_model(), *sorted(facts)]).encode()).hexdigest()
