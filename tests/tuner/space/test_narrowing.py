"""Knobs cut to what a machine has."""

import pytest

from tuner.space.environment import Machine
from tuner.space.knobs import ChoiceKnob, DeviceKnob, FloatKnob, IntKnob
from tuner.space.narrowing import CLOCK, narrow_knob

SMALL = Machine(cores=2, memory_mb=300)
GPU = Machine(cores=2, memory_mb=300, gpu_clocks_mhz=(300, 600, 900, 1200))

CPU = FloatKnob(
    name="replica.cpu", unit="cores", low=0.5, high=8.0, grid=(0.5, 2.0, 8.0), default=8.0
)
MEMORY = IntKnob(
    name="replica.memory_mb", unit="MiB", low=64, high=512, grid=(64, 256, 512), default=64
)
CLOCKS = IntKnob(name=CLOCK, unit="MHz", low=600, high=1500, grid=(600, 900, 1500), default=900)
SIZE = IntKnob(name="batching.max_size", low=1, high=64, default=8)


@pytest.mark.parametrize(
    ("knob", "machine", "values", "default", "notes"),
    [
        (CPU, SMALL, (0.5, 2.0), 2.0,
         ("replica.cpu: 8.0 cores left out: the machine has 2 cores",
          "replica.cpu: default 2.0 cores here, not 8.0")),
        (MEMORY, SMALL, (64, 256), 64,
         ("replica.memory_mb: 512 MiB left out: the machine has 300 MiB",)),
        (CLOCKS, GPU, (600, 900), 900,
         (f"{CLOCK}: 1500 MHz left out: the GPU does not offer it",)),
        (DeviceKnob(name=CLOCK, unit="MHz", points=2), GPU, (300, 1200), 1200, ()),
        (SIZE, SMALL, SIZE.values(), 8, ()),
    ],
)  # fmt: skip
def test_what_a_machine_lacks_is_left_out_with_a_note(knob, machine, values, default, notes):
    """The rest of the grid stays, the default moves to the nearest value, and a reader can see it."""
    found = narrow_knob(knob, machine)

    assert found.knob is not None
    assert values == found.knob.values()
    assert default == found.knob.default
    assert notes == found.notes


def test_a_choice_stays_as_it_is():
    """Texts ask nothing of a machine."""
    knob = ChoiceKnob(name="routing.policy", choices=("a", "b"), default="a")

    assert (knob, ()) == narrow_knob(knob, SMALL)


@pytest.mark.parametrize("knob", [CLOCKS, DeviceKnob(name=CLOCK)])
def test_the_clock_is_left_out_where_none_can_be_chosen(knob):
    """Without a GPU, and with one that offers a single clock, there is no knob, but a note."""
    found = narrow_knob(knob, SMALL)

    assert found.knob is None
    assert (f"{CLOCK} left out: no GPU of this machine offers clocks to lock",) == found.notes


def test_a_single_clock_is_no_choice():
    """A GPU that offers one clock leaves nothing to search."""
    found = narrow_knob(
        DeviceKnob(name=CLOCK), Machine(cores=1, memory_mb=1, gpu_clocks_mhz=(900,))
    )

    assert (None, (f"{CLOCK} left out: the GPU offers only one clock",)) == found


def test_a_knob_of_which_nothing_is_left_is_an_error():
    """A machine on which no value is possible cannot be searched."""
    with pytest.raises(ValueError, match=r"none of its values \(64, 256, 512 MiB\) is possible"):
        narrow_knob(MEMORY, Machine(cores=1, memory_mb=32))


def test_only_the_clock_comes_from_the_device():
    """No device says how many replicas there are."""
    with pytest.raises(ValueError, match="takes them from the device"):
        narrow_knob(DeviceKnob(name="replica.count"), SMALL)
