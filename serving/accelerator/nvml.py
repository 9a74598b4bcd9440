"""NVML access to one GPU: clocks, power, energy.

The binding (`nvidia-ml-py`) is slow to import, so that happens on first use. Only `clocks`, which
keeps a journal, may change a clock.

Source: NVML API reference, device queries and device commands.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from serving.accelerator import devices
from serving.errors import AcceleratorUnavailable

_Answer = TypeVar("_Answer")


class ApplicationClocks(NamedTuple):
    """Application clocks in MHz: an older setting that, unlike a lock, can be read."""

    memory_mhz: int
    graphics_mhz: int


class Gpu:
    """One GPU, while NVML is open.

    Methods raise AcceleratorUnavailable on NVML errors.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle

    @property
    def uuid(self) -> str:
        """Permanent unique id of the GPU."""
        return str(self._query("its UUID", self._nvml.nvmlDeviceGetUUID))

    @property
    def name(self) -> str:
        """Product name."""
        return str(self._query("its name", self._nvml.nvmlDeviceGetName))

    def clocks_mhz(self) -> tuple[int, ...]:
        """Return the graphics clocks at the highest memory clock, ascending."""
        memory_mhz = max(self._memory_clocks())
        clocks = self._query(
            "its clocks", self._nvml.nvmlDeviceGetSupportedGraphicsClocks, memory_mhz
        )
        return tuple(sorted(set(clocks)))

    def clock_mhz(self) -> int:
        """Return the current graphics clock."""
        kind = self._nvml.NVML_CLOCK_GRAPHICS
        return int(self._query("its clock", self._nvml.nvmlDeviceGetClockInfo, kind))

    def power_w(self) -> float:
        """Return the board's current power."""
        return float(self._query("its power", self._nvml.nvmlDeviceGetPowerUsage)) / 1e3

    def energy_j(self) -> float:
        """Return the energy used since the driver was loaded."""
        used_mj = self._query("its energy", self._nvml.nvmlDeviceGetTotalEnergyConsumption)
        return float(used_mj) / 1e3

    def application_clocks(self) -> ApplicationClocks | None:
        """Return the application clocks, or None if unsupported."""
        nvml = self._nvml
        try:
            return ApplicationClocks(
                *(
                    int(nvml.nvmlDeviceGetApplicationsClock(self._handle, kind))
                    for kind in (nvml.NVML_CLOCK_MEM, nvml.NVML_CLOCK_GRAPHICS)
                )
            )
        except nvml.NVMLError:
            return None

    def lock_clock(self, mhz: int) -> None:
        """Lock the graphics clock, or before Volta set the application clocks."""
        nvml = self._nvml
        try:
            nvml.nvmlDeviceSetGpuLockedClocks(self._handle, mhz, mhz)
        except nvml.NVMLError_NotSupported:
            self._set_applications(ApplicationClocks(max(self._memory_clocks()), mhz))
        except nvml.NVMLError as error:
            raise self._make_error("its clock cannot be locked", error) from error

    def unlock_clock(self, before: ApplicationClocks | None) -> None:
        """Unlock the clock and restore application clocks that were changed."""
        nvml = self._nvml
        try:
            nvml.nvmlDeviceResetGpuLockedClocks(self._handle)
        except nvml.NVMLError_NotSupported:
            pass
        except nvml.NVMLError as error:
            raise self._make_error("its clock cannot be unlocked", error) from error
        if before is not None and self.application_clocks() != before:
            self._set_applications(before)

    def _set_applications(self, clocks: ApplicationClocks) -> None:
        set_clocks = self._nvml.nvmlDeviceSetApplicationsClocks
        try:
            set_clocks(self._handle, clocks.memory_mhz, clocks.graphics_mhz)
        except self._nvml.NVMLError as error:
            raise self._make_error("its clock cannot be set", error) from error

    def _memory_clocks(self) -> list[int]:
        return list(self._query("its clocks", self._nvml.nvmlDeviceGetSupportedMemoryClocks))

    def _query(self, what: str, ask: Callable[..., _Answer], *arguments: object) -> _Answer:
        try:
            return ask(self._handle, *arguments)
        except self._nvml.NVMLError as error:
            raise self._make_error(f"it does not report {what}", error) from error

    def _make_error(self, what: str, error: Exception) -> AcceleratorUnavailable:
        root = isinstance(error, self._nvml.NVMLError_NoPermission)
        hint = "; this needs root" if root and os.geteuid() else ""
        return AcceleratorUnavailable(f"the GPU: {what}: {error}{hint}")


@contextlib.contextmanager
def open_gpu(
    which: int | str | None = None, environ: Mapping[str, str] = os.environ
) -> Iterator[Gpu]:
    """Open NVML with a GPU by index or UUID (by default, the server's); reentrant, thread-safe.

    Raises:
        AcceleratorUnavailable: the binding, the driver or the GPU is missing.
    """
    which = devices.first_visible(environ) if which is None else which
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ModuleNotFoundError as error:
        raise AcceleratorUnavailable(
            "the Python package nvidia-ml-py is not installed, so GPUs cannot be queried"
        ) from error
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise AcceleratorUnavailable(f"no GPU responds through NVML: {error}") from error
    try:
        try:
            if isinstance(which, int):
                handle = nvml.nvmlDeviceGetHandleByIndex(which)
            else:
                handle = nvml.nvmlDeviceGetHandleByUUID(which.encode())
        except nvml.NVMLError as error:
            raise AcceleratorUnavailable(f"no GPU {which} on this machine: {error}") from error
        yield Gpu(nvml, handle)
    finally:
        nvml.nvmlShutdown()


def is_there() -> bool:
    """Whether the server's GPU responds."""
    try:
        with open_gpu():
            return True
    except AcceleratorUnavailable:
        return False
