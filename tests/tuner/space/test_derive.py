"""Ranges from a probe: their rules, and that what is derived can be searched."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.errors import InvalidSpace
from tuner.space import files
from tuner.space.derive import derive, text
from tuner.space.environment import Environment, Machine
from tuner.space.probe import ProbeResult

SMALL = Machine(cores=2, memory_mb=8192)
PROBE = ProbeResult(
    model="models/net.onnx",
    concurrency=20,
    machine=SMALL,
    idle_memory_mb=30.0,
    peak_memory_mb={1: 40.0, 8: 50.0, 64: 100.0},
    cpu_cores_used=1.0,
    service_time_s={1: 0.001, 8: 0.004, 64: 0.030},
)


def values_of(probe, name):
    """The grid of one derived knob."""
    return next(knob for knob in derive(probe).knobs if knob.name == name).values()


def default_of(probe, name):
    """The default of one derived knob."""
    return next(knob for knob in derive(probe).knobs if knob.name == name).default


def test_counts_go_to_twice_the_cores():
    """Two cores make four replicas, where memory and requests allow it."""
    assert values_of(PROBE, "replica.count") == (1, 2, 3, 4)


@pytest.mark.parametrize(
    ("phrase", "changes", "expected"),
    [
        ("bounded by memory", {"machine": Machine(cores=8, memory_mb=130)}, (1, 2, 3)),
        ("bounded by the requests in flight", {"concurrency": 2}, (1, 2)),
        ("bounded by the engine", {"machine": Machine(cores=64, memory_mb=99_999), "concurrency": 500},
         (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)),
        ("the bound itself is tried", {"concurrency": 5, "machine": Machine(cores=8, memory_mb=9999)},
         (1, 2, 3, 4, 5)),
    ],
)  # fmt: skip
def test_counts_are_bounded(phrase, changes, expected):
    """What cannot be started, or would never have work, is not tried."""
    assert expected == values_of(dataclasses.replace(PROBE, **changes), "replica.count"), phrase


def test_a_client_batch_counts_items_in_flight():
    """One request of 4 items gives work to four replicas, and a batch may hold all 4 of them."""
    probe = dataclasses.replace(PROBE, concurrency=1, client_batch=4)
    assert values_of(probe, "replica.count") == (1, 2, 3, 4)
    assert max(size for size in values_of(probe, "batching.max_size") if size != 8) == 4
    assert values_of(dataclasses.replace(probe, client_batch=1), "replica.count") == (1,)
    assert "at concurrency 1 with 4 items in each request" in text(probe)


def test_memory_goes_from_above_one_items_to_four_times_the_peak():
    """The lowest limit holds what single items took, and the default is generous."""
    values = values_of(PROBE, "replica.memory_mb")

    assert (values[0], values[-1], len(values)) == (52, 400, 5)
    assert default_of(PROBE, "replica.memory_mb") == 400


def test_memory_stays_within_the_machine_and_the_engine():
    """A limit above the machine's memory, or below the engine's least, is not tried."""
    tight = dataclasses.replace(PROBE, machine=Machine(cores=2, memory_mb=90))
    tiny = dataclasses.replace(PROBE, idle_memory_mb=1.0, peak_memory_mb={1: 1.5})

    assert values_of(tight, "replica.memory_mb")[-1] == 90
    assert values_of(tiny, "replica.memory_mb") == (8,)


def test_a_model_of_a_fixed_batch_has_no_batching_to_search():
    """Its knobs would change nothing; the file says why they are not there, and can be read."""
    fixed = dataclasses.replace(
        PROBE, whole="input 'x' is a scalar", peak_memory_mb={1: 40.0}, service_time_s={1: 0.001}
    )
    names = {knob.name for knob in derive(fixed).knobs}
    made = text(fixed)

    assert names == {"replica.count", "replica.cpu", "replica.memory_mb", "replica.threads"}
    assert "served whole, one request at a time (input 'x' is a scalar)" in " ".join(
        made.replace("#", " ").split()
    )
    assert files.parse(made, file="fixed.yaml").equivalence == (
        "cpu-over-machine",
        "cpu-over-threads",
    )
    assert "batching.max_size" in {knob.name for knob in derive(PROBE).knobs}


def test_a_model_that_does_not_fit_is_refused():
    """Where one replica does not fit there is nothing to search."""
    with pytest.raises(InvalidSpace, match="used 40 MiB in the probe, but the machine has 35"):
        derive(dataclasses.replace(PROBE, machine=Machine(cores=2, memory_mb=35)))


@pytest.mark.parametrize(
    ("phrase", "changes", "expected"),
    [
        ("up to the first that holds all requests", {}, (1, 2, 4, 8, 16, 32)),
        ("exactly that many", {"concurrency": 16}, (1, 2, 4, 8, 16)),
        ("no gain above 8",
         {"concurrency": 100, "service_time_s": {1: 0.001, 8: 0.004, 64: 0.032}}, (1, 2, 4, 8)),
        ("still gaining at the largest probed", {"concurrency": 100}, (1, 2, 4, 8, 16, 32, 64, 128)),
        ("the server's default is always there", {"concurrency": 2}, (1, 2, 8)),
        ("no gain at all",
         {"service_time_s": {1: 0.001, 8: 0.008, 64: 0.064}}, (1, 8)),
    ],
)  # fmt: skip
def test_sizes_end_where_they_gain_nothing(phrase, changes, expected):
    """Batch sizes are powers of two up to the concurrency or to where time per item stops falling."""
    assert expected == values_of(dataclasses.replace(PROBE, **changes), "batching.max_size"), phrase


def test_timeouts_go_from_half_an_item_to_twice_the_largest_batch():
    """0 and five waits between half of 1 ms and twice the 9.6 ms that a batch of 20 takes."""
    assert values_of(PROBE, "batching.timeout_us") == (0, 500, 1200, 3100, 7700, 19000)


def test_fast_models_still_have_timeouts():
    """Under the gateway's own time there is a floor, and above it some choice."""
    fast = dataclasses.replace(PROBE, service_time_s={1: 1e-6})

    assert values_of(fast, "batching.timeout_us") == (0, 50, 71, 100, 140, 200)


def test_slow_models_stay_within_the_engines_timeouts():
    """A batch of a minute does not ask for a timeout that the engine refuses."""
    slow = dataclasses.replace(PROBE, service_time_s={1: 60.0})

    assert max(values_of(slow, "batching.timeout_us")) == 10_000_000


def test_quotas_span_what_the_threads_can_use():
    """From 0.3 of one thread's use to more than all threads need, within the machine."""
    four = dataclasses.replace(PROBE, machine=Machine(cores=4, memory_mb=8192))

    assert values_of(PROBE, "replica.cpu") == (0.3, 0.5, 0.75, 1.0, 1.5, 2.0)
    assert values_of(four, "replica.cpu") == (0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0)
    assert default_of(four, "replica.cpu") == 4.0
    assert values_of(four, "replica.threads") == (1, 2, 4)


def test_the_clock_is_a_knob_where_there_is_a_choice():
    """A GPU that offers several clocks adds the knob."""
    one, several = (
        dataclasses.replace(PROBE, machine=dataclasses.replace(SMALL, gpu_clocks_mhz=clocks))
        for clocks in ((900,), (300, 900))
    )

    assert "accelerator.clock_mhz" not in {knob.name for knob in derive(one).knobs}
    assert "accelerator.clock_mhz" in {knob.name for knob in derive(several).knobs}


def test_rules_that_do_not_hold_are_left_out_with_the_reason():
    """Long batches and a model's own threads break an assumption each."""
    slow = dataclasses.replace(PROBE, service_time_s={1: 0.030})
    greedy = dataclasses.replace(PROBE, cpu_cores_used=1.8)

    assert "cpu-over-machine" not in derive(slow).equivalence
    assert "cpu-over-machine is left out: a batch takes 30 ms" in text(slow)
    assert "cpu-over-threads" not in derive(greedy).equivalence
    assert "cpu-over-threads is left out: with one thread the model used 1.8 cores" in text(greedy)
    assert len(derive(PROBE).equivalence) == 4


def test_the_text_gives_a_reason_for_each_range_and_reads_back():
    """The file is the same space, and says why."""
    written = text(PROBE)

    assert derive(PROBE) == dataclasses.replace(files.parse(written, "net.yaml"), source="")
    assert written.startswith(
        "# Search space of models/net.onnx, derived by a probe at concurrency 20"
    )
    for part in ("Up to 4: twice the machine's cores (2).", "40 with batches of 1", "8: 4 ms"):
        assert part in written


@st.composite
def probes(draw):
    """Probes of any model on any machine that holds it."""
    sizes = sorted({1, *draw(st.sets(st.sampled_from((2, 4, 8, 16, 32, 64, 128)), max_size=4))})
    time_s, memory_mb = draw(st.floats(1e-5, 5)), draw(st.floats(2, 5000))
    growth = draw(st.floats(0.1, 1.3))
    return ProbeResult(
        model=draw(st.sampled_from(("net.onnx", "a/b c.py", "größe.skops"))),
        concurrency=draw(st.integers(1, 300)),
        machine=Machine(
            cores=draw(st.integers(1, 96)),
            memory_mb=draw(st.integers(8, 300_000)),
            gpu_clocks_mhz=draw(st.sampled_from(((), (300, 600, 900)))),
        ),
        idle_memory_mb=memory_mb * draw(st.floats(0.5, 1)),
        peak_memory_mb={size: memory_mb * (1 + size * 0.01) for size in sizes},
        cpu_cores_used=draw(st.floats(0.01, 96)),
        service_time_s={size: time_s * size**growth for size in sizes},
    )


@settings(deadline=None, max_examples=50)
@given(probe=probes())
def test_what_is_derived_can_be_written_read_and_searched(probe):
    """For any probe: the file reads back, and on that machine some configuration is feasible."""
    try:
        space = files.parse(text(probe), "x.yaml")
    except InvalidSpace:
        assert probe.machine.memory_mb < max(8, probe.peak_memory_mb[1])
        return

    here = space.narrow(Environment(concurrency=probe.concurrency, machine=probe.machine))

    assert not any("the machine has" in note for note in here.notes)
    assert here.is_feasible(here.default())


def test_derived_spaces_stay_searchable():
    """On two cores and on sixteen there are some thousands of cells, not hundreds of thousands."""
    large = dataclasses.replace(PROBE, machine=Machine(cores=16, memory_mb=65_536), concurrency=64)
    counts = [
        len(
            derive(probe).candidates(
                Environment(concurrency=probe.concurrency, machine=probe.machine)
            )
        )
        for probe in (PROBE, large)
    ]

    assert 1000 < counts[0] < 20_000
    assert 1000 < counts[1] < 100_000


@pytest.mark.parametrize(
    ("phrase", "changes", "part"),
    [
        ("a time of 0", {"service_time_s": {1: 0.0}}, "probe again"),
        ("no CPU use", {"cpu_cores_used": float("nan")}, "probe again"),
    ],
)
def test_a_probe_that_cannot_be_right_is_refused(phrase, changes, part):
    """What was not measured is not guessed."""
    with pytest.raises(ValueError, match=part):
        dataclasses.replace(PROBE, **changes)


def test_filling_up_is_searched_where_requests_differ_and_can_be_filled_up():
    """By default nothing is filled up."""
    assert "batching.pad_to" not in text(PROBE)
    pads = dataclasses.replace(PROBE, pads=True)
    assert values_of(pads, "batching.pad_to") == (1, 8, 32, 128)
    assert default_of(pads, "batching.pad_to") == 1
    whole = dataclasses.replace(pads, whole="an input is a scalar")
    assert "batching.pad_to" not in text(whole)
