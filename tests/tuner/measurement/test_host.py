"""Reading the host around a phase."""

import os
import time

import pytest

from tuner.measurement import host
from tuner.values.measurement import HostNoise


def write(proc, *, steal, processes, busy=9):
    """A small procfs: user, nice and system time each of so many ticks."""
    whole = f"cpu  {busy} {busy} {busy} 9 9 9 9 {steal} 0 0"
    (proc / "stat").write_text(f"{whole}\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
    for pid, (user, system) in processes.items():
        (proc / str(pid)).mkdir(exist_ok=True)
        fields = ["S", *["0"] * 10, str(user), str(system), "0", "0"]
        (proc / str(pid) / "stat").write_text(f"{pid} (a ) (b)) {' '.join(fields)}\n")


def test_noise_is_the_difference_of_two_readings(tmp_path):
    """Steal and the CPU time of the processes that are there; names with parentheses do no harm."""
    ticks = os.sysconf("SC_CLK_TCK")
    write(tmp_path, steal=ticks, processes={7: (ticks, ticks), 9: (5, 5)})
    before = host.read([7, 8, 9], proc=tmp_path)
    write(tmp_path, steal=3 * ticks, processes={7: (2 * ticks, 3 * ticks), 8: (ticks, 0)})
    (tmp_path / "9" / "stat").unlink()
    after = host.read([7, 8, 9], proc=tmp_path)
    noise = host.noise_between(
        before, after, client_cpu_s=0.5, throttled_s=0.1, peak_memory_mb=64.0
    )
    assert noise == HostNoise(
        steal_s=2.0,
        server_cpu_s=4.0,
        client_cpu_s=0.5,
        throttled_s=0.1,
        peak_memory_mb=64.0,
        neighbour_cpu_s=0.0,
    )


def test_foreign_is_what_neither_the_server_nor_what_measures_it_used(tmp_path):
    """User, nice and system time of the machine; where the server's processes are not known, nobody can tell."""
    ticks = os.sysconf("SC_CLK_TCK")
    write(tmp_path, steal=0, busy=0, processes={7: (0, 0), 8: (0, 0)})
    before = host.read([7], [8], proc=tmp_path)
    write(tmp_path, steal=0, busy=2 * ticks, processes={7: (ticks, ticks), 8: (ticks, 0)})
    after = host.read([7], [8], proc=tmp_path)
    noise = host.noise_between(before, after)
    assert (noise.server_cpu_s, noise.neighbour_cpu_s) == (2.0, 3.0)
    assert host.noise_between(before, after, knows_server=False).neighbour_cpu_s is None


@pytest.mark.parametrize("text", [None, "", "intr 1 2 3\n", "cpu 1 2 3\n", "cpu a b c d e f g h\n"])
def test_what_cannot_be_read_is_none(tmp_path, text):
    """Another system, or another form: no figure instead of a wrong one."""
    if text is not None:
        (tmp_path / "stat").write_text(text)
    reading = host.read([1], proc=tmp_path)
    assert (reading.steal_s, reading.busy_s, dict(reading.cpu_s)) == (None, None, {})
    assert host.noise_between(reading, reading) == HostNoise()


@pytest.mark.skipif(not host.PROC.joinpath("stat").exists(), reason="needs procfs")
def test_a_working_process_uses_time_on_a_real_machine():
    """This process, while it counts."""
    before = host.read([os.getpid()])
    begun = time.process_time()
    while time.process_time() - begun < 0.1:
        pass
    noise = host.noise_between(before, host.read([os.getpid()]))
    assert noise.server_cpu_s >= 0.05
    assert noise.steal_s is None or noise.steal_s >= 0
