"""The machine and the load as constraints see them."""

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
