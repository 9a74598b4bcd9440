"""Which GPU is meant, and what replicas see of it."""

from __future__ import annotations

import os
import socket

import pytest

from serving.accelerator import devices, mps, nvml
from serving.errors import AcceleratorUnavailable
from serving.settings.replica import AcceleratorSettings


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, 0),
        ({"CUDA_VISIBLE_DEVICES": "2"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "3,1"}, 3),
        ({"CUDA_VISIBLE_DEVICES": "GPU-5ca1ab1e,0"}, "GPU-5ca1ab1e"),
        ({"CUDA_VISIBLE_DEVICES": "MIG-5ca1ab1e"}, "MIG-5ca1ab1e"),
    ],
)
def test_the_first_visible_gpu_is_meant(environ, expected) -> None:
    """As CUDA counts them."""
    assert devices.first_visible(environ) == expected


@pytest.mark.parametrize("listed", ["", "-1", "none"])
def test_hidden_gpus_are_none(listed) -> None:
    """An environment that hides all GPUs is obeyed."""
    with pytest.raises(AcceleratorUnavailable, match="hides all GPUs"):
        devices.first_visible({"CUDA_VISIBLE_DEVICES": listed})


@pytest.mark.parametrize(
    ("settings", "shares", "expected"),
    [
        (AcceleratorSettings(), True, {}),
        (AcceleratorSettings(share=25), True, {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"}),
        (AcceleratorSettings(share=25), False, {}),
        (AcceleratorSettings(device="cpu", share=25), True, {"CUDA_VISIBLE_DEVICES": "-1"}),
    ],
)
def test_a_replica_is_told_by_its_environment(settings, shares, expected) -> None:
    """No GPU for `cpu`; a share where MPS runs; else what the server has."""
    assert devices.replica_environment(settings, shares=shares) == expected


@pytest.mark.parametrize(
    ("device", "has_gpu", "expected"),
    [("cpu", True, None), ("auto", False, None), ("auto", True, "2"), ("cuda", False, "2")],
)
def test_what_a_container_is_given(device, has_gpu, expected) -> None:
    """`auto` asks for a GPU only where there is one, `cuda` always."""
    settings = AcceleratorSettings(device=device)
    environ = {"CUDA_VISIBLE_DEVICES": "2"}
    assert devices.container_gpu(settings, environ, has_gpu=has_gpu) == expected


def test_a_gpu_is_there_or_not(gpu) -> None:
    """Told by its driver."""
    assert nvml.is_there()
    gpu.unplug()
    assert not nvml.is_there()


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_a_daemon_of_mps_is_known_by_its_socket(tmp_path, kind) -> None:
    """It listens: shares work. It has ended, or was never there: the reason names the place."""
    environ = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}
    assert f"answers at {tmp_path}/control (No such file" in str(mps.lacking(environ))
    with socket.socket(socket.AF_UNIX, kind) as daemon:
        daemon.bind(str(tmp_path / "control"))
        daemon.listen()
        assert mps.lacking(environ) is None
    assert "Connection refused" in str(mps.lacking(environ))


def test_the_default_place_of_the_pipes() -> None:
    """Where NVIDIA's daemon listens untold."""
    found = mps.lacking({name: value for name, value in os.environ.items() if "MPS" not in name})
    assert found is None or "/tmp/nvidia-mps/control" in found
