"""The parent of several gateways, where a gateway's process ends or hangs before it serves."""

import asyncio
import sys

import pytest

from serving.app import gateways
from serving.app.gateways import Gateways
from serving.errors import NotReady
from serving.model_spec import ModelSpec
from serving.settings import ServingSettings
from serving.system.control_channel import ControlledProcess

LONG = "x" * 4_000_000
"""More than the channel holds: it is sent only if the child reads it."""


@pytest.mark.parametrize("script", ["exit 0", "exec sleep 60"])
async def test_a_gateway_that_takes_no_command_is_ended(script, tmp_path, monkeypatch):
    """Whether it has ended or hangs; the server that starts says so."""
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(gateways, "_SEND_S", 0.2)
    started = []

    def start(*words, **more):
        made = ControlledProcess.start(*words, **more)
        started.append(made.process)
        if script == "exit 0":
            made.process.wait(10)
        return made

    monkeypatch.setattr(gateways, "ControlledProcess", type("Starts", (), {"start": start}))
    settings = ServingSettings().with_changes({"server.gateways": 2, "server.port": 0})
    spec = ModelSpec(name="echo", version="1", kind="echo", path=None, description=LONG)
    parent = Gateways([spec], settings, None, level="error")
    async with asyncio.timeout(20):
        with pytest.raises(NotReady, match="ended before it was ready"):
            await parent.run()
    assert len(started) >= 2
    assert all(process.poll() is not None for process in started)
