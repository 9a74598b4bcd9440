"""The machine and the load as constraints see them."""

import pytest

from tuner.space.environment import ENVIRONMENT_SYMBOLS, Environment, Machine


def test_symbols_are_what_constraints_may_name():
    """Each symbol has a value, by the name that constraints use."""
    environment = Environment(concurrency=20, machine=Machine(cores=2, memory_mb=4096))

    symbols = environment.symbols()

    assert tuple(symbols) == ENVIRONMENT_SYMBOLS
    assert symbols == {
        "machine.cores": 2,
        "machine.memory_mb": 4096,
        "concurrency": 20,
        "client_batch": 1,
    }


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Machine(cores=0, memory_mb=1), "0 cores"),
        (lambda: Machine(cores=1, memory_mb=0), "0 MiB"),
        (lambda: Machine(cores=1, memory_mb=1, gpu_clocks_mhz=(0, 900)), "GPU clocks"),
        (
            lambda: Environment(concurrency=0, machine=Machine(cores=1, memory_mb=1)),
            "concurrency 0",
        ),
    ],
)
def test_what_cannot_be_is_refused(make, text):
    """A machine without cores or memory, and a load without requests, are errors."""
    with pytest.raises(ValueError, match=text):
        make()
