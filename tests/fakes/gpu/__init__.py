"""A GPU for tests: the driver's libraries, as far as they are asked, built from C beside this file.

The real Python binding calls them through ctypes, so that what is tested is what runs on a machine with a GPU.
No test reaches a real one: in this process the binding is given the fake library by its path, other processes
find it first on LD_LIBRARY_PATH.
"""

import ctypes
import dataclasses
import pathlib
import shutil
import subprocess

import pytest

HERE = pathlib.Path(__file__).parent
LIBRARIES = {"libnvidia-ml.so.1": "nvml.c", "libcuda.so.1": "cuda.c"}
UUID = "GPU-5ca1ab1e-0000-4000-8000-0123456789ab"
CLOCKS_MHZ = (300, 900, 1410, 1980)
FREE_MHZ = 1980
"""What it runs at where nothing is locked."""

NOT_SUPPORTED, NO_PERMISSION, NO_DRIVER = 3, 4, 9


def power_w(clock_mhz):
    """What it draws at a clock."""
    return 50 + 0.1 * clock_mhz


@dataclasses.dataclass
class FakeGpu:
    """The GPU, seen from outside."""

    folder: pathlib.Path
    monkeypatch: pytest.MonkeyPatch

    @property
    def changes(self):
        """What was done to it, in order."""
        log = self.folder / "gpu.log"
        return log.read_text().splitlines() if log.exists() else []

    @property
    def locked_mhz(self):
        """What it is locked to, 0: nothing."""
        state = self.folder / "gpu"
        return int(state.read_text().split()[0]) if state.exists() else 0

    @property
    def applications_mhz(self):
        """Memory and graphics clock of applications."""
        _, memory, graphics, *_ = (self.folder / "gpu").read_text().split()
        return int(memory), int(graphics)

    @property
    def notes(self):
        """The notes of it that there are."""
        return sorted((self.folder / "state" / "luthier" / "accelerator").glob("*.json"))

    def refuse(self, **functions):
        """Let functions of NVML fail with these codes."""
        text = ",".join(f"{name}={code}" for name, code in functions.items())
        self.monkeypatch.setenv("FAKE_NVML_FAIL", text)

    def unplug(self):
        """No driver from now on."""
        self.monkeypatch.delenv("FAKE_NVML_STATE")


def built_in(folder):
    """Build the libraries in a folder, or skip the test."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to build the fake GPU")
    for name, source in LIBRARIES.items():
        command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", folder / name]
        subprocess.run([*command, HERE / source], check=True)
    return folder


def plugged_in(libraries, folder, monkeypatch):
    """A machine with one GPU, for this process and those that it starts; ends with the monkeypatch."""
    pynvml = pytest.importorskip("pynvml", reason="needs nvidia-ml-py")
    monkeypatch.setenv("FAKE_NVML_STATE", str(folder / "gpu"))
    monkeypatch.setenv("FAKE_CUDA_GPUS", "1")
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(libraries))
    monkeypatch.delenv("FAKE_NVML_FAIL", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(libraries / "libnvidia-ml.so.1")))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    return FakeGpu(folder, monkeypatch)
