"""What the room's tests share: one BLAS thread, and Optuna without its progress lines."""

from __future__ import annotations

from collections.abc import Iterator

import optuna
import pytest

from tuner.sampling import blas


@pytest.fixture(scope="session", autouse=True)
def _single_threaded() -> Iterator[None]:
    with blas.single_threaded():
        yield


@pytest.fixture(autouse=True)
def _quiet_optuna() -> Iterator[None]:
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(before)
