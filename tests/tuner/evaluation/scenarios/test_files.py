"""A scenario file: what it means, and what is wrong with it in one line."""

from __future__ import annotations

import pathlib

import pytest

from tuner.errors import InvalidScenario
from tuner.evaluation.scenarios import files
from tuner.evaluation.scenarios.values import REFERENCE

ROOT = pathlib.Path(__file__).resolve().parents[4]
WHOLE = """
seconds: 20
seed: 7
workers: 2
memory_pages: 14
concurrent_loads: true
models:
  hot: {profile: resnet50-v100}
  own: {copies: 3, profile: {pages: 2, load_ms: 2.5, batch_ms: {1: 0.5, 4: 1.8}}}
traffic:
  hot: {rate: 50, deadline_ms: 100, arrivals: burst, from_s: 1}
  busy: {models: own, clients: 2, items: 3, deadline_ms: {first: 2, factor: 1.5, every_s: 5}}
  seen: {models: own, arrivals: trace, file: seen.csv, deadline_ms: 30}
settings: {clockwork.duration_margin: 0}
emulated: {jitter: factors.txt, message_latency_us: 100}
"""


@pytest.fixture
def write(tmp_path: pathlib.Path):
    def made(text: str) -> pathlib.Path:
        path = tmp_path / "pool.yaml"
        path.write_text(text, encoding="utf-8")
        (tmp_path / "seen.csv").write_text("seconds,model\n0.5,0\n0.5,2\n", encoding="utf-8")
        (tmp_path / "factors.txt").write_text("1.0\n1.25\n", encoding="utf-8")
        return path

    return made


def test_a_file_is_parsed_once(write) -> None:
    """Also with its trace: what a command was begun with counts to its end."""
    path = write(WHOLE)
    first = files.read(path)
    assert files.read(path) is first
    assert files.parse(WHOLE.replace("seed: 7", "seed: 8"), path).seed == 8


def test_every_key_has_its_meaning(write) -> None:
    found = files.read(write(WHOLE))
    assert (found.name, found.seconds, found.seed, found.workers) == ("pool", 20, 7, 2)
    assert (found.pages, found.concurrent_loads) == (14, True)
    hot, own = found.groups
    assert (hot.copies, hot.profile) == (1, REFERENCE)
    assert (own.copies, own.profile.pages) == (3, 2)
    assert (own.profile.load_s, own.profile.batch_s[4]) == pytest.approx((0.0025, 0.0018))
    first, busy, seen = found.streams
    assert (first.group, first.rate_per_s, first.arrivals, first.from_s) == ("hot", 50, "burst", 1)
    assert (busy.clients, busy.items, busy.deadline.at(4.9)) == (2, 3, 0.002)
    assert busy.deadline.at(10.0) == pytest.approx(0.002 * 1.5**2)
    assert seen.trace == ((0.5, 0), (0.5, 2))
    assert (found.emulated.jitter, found.emulated.message_latency_s) == (
        (1.0, 1.25),
        pytest.approx(1e-4),
    )
    assert found.settings == {"clockwork.duration_margin": 0}
    assert (found.first_of("own"), found.first_of("hot")) == (1, 0)


def test_a_jitter_of_one_number_is_half_normal(write) -> None:
    text = WHOLE.replace("jitter: factors.txt", "jitter: 0.1")
    factors = files.read(write(text)).emulated.jitter
    assert min(factors) >= 1.0
    assert sum(factors) / len(factors) == pytest.approx(1.0 + 0.1 * 0.798, abs=1e-3)


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks" / "scenarios").glob("*.yaml")))
def test_the_scenarios_of_the_benchmark_can_be_read(path: pathlib.Path) -> None:
    assert files.read(path).streams


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("seconds: 20", "second: 20", "unknown key 'second'"),
        ("seconds: 20", "seconds: 0", "seconds: 0, expected a number above 0"),
        ("resnet50-v100", "resnet50", "did you mean 'resnet50-v100'"),
        ("burst", "bursts", "did you mean 'burst'"),
        ("rate: 50", "rate: 5000000", "expected at most 10,000,000"),
        ("from_s: 1", "from_s: 20", "expected less than seconds (20)"),
        ("models: own, clients", "models: mine, clients", "unknown group of models 'mine'"),
        (
            "clients: 2",
            "clients: 2, rate: 3",
            "clients or a trace, which decide when requests come",
        ),
        ("{1: 0.5, 4", "{2: 0.5, 4", "no batch size 1"),
        (
            "copies: 3",
            "copies: 2",
            "line 3: '0.5,2', expected seconds from 0 and a model from 0 to",
        ),
        ("seen.csv", "none.csv", "none.csv cannot be read: No such file"),
        ("factors.txt", "seen.csv", "expected a factor in each line"),
        ("workers: 2", "workers: 0", "expected a whole number from 1"),
        ("seconds: 20", "seconds: 2000000", "expected at most 1e+06"),
        ("memory_pages: 14", "memory_pages: 6", "7 pages, more than a worker's memory_pages (6)"),
        ("every_s: 5", "every_s: 0.0001", "a factor nearer to 1"),
        ("every_s: 5", "every_s: 1.0e-9", "expected at least 1e-06"),
        ("from_s: 1", "active_every_s: 1.0e-300", "expected 0, or at least 1e-06 s"),
        ("from_s: 1", "active_every_s: 1, zipf: 1", "choose one"),
        (
            "clients: 2",
            "clients: 2, zipf: 1",
            "only allowed with a rate of poisson, constant, burst",
        ),
        ("from_s: 1", "file: seen.csv", "only allowed with arrivals: trace"),
        ("clients: 2", "clients: 2000000", "expected a whole number from 0 to 10,000"),
        ("file: seen.csv", r'file: "a\0b"', "cannot be read: embedded null byte"),
        (
            "clockwork.duration_margin: 0",
            "scheduling.policy: adaptive",
            "use the clockwork scheduler",
        ),
    ],
)
def test_what_is_wrong_is_one_line_with_its_place(write, old: str, new: str, said: str) -> None:
    with pytest.raises(InvalidScenario) as caught:
        files.read(write(WHOLE.replace(old, new, 1)))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "pool.yaml" in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InvalidScenario, match=r"none\.yaml.*cannot be read: No such file"):
        files.read(tmp_path / "none.yaml")
