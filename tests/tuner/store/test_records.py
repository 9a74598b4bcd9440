"""Raw requests survive the file, whatever their number."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.errors import UsageError
from tuner.store import records
from tuner.values.request_records import RequestRecords


def some_records(count: int, *, is_open_loop: bool) -> RequestRecords:
    rng = np.random.default_rng(count)
    started_s = np.sort(rng.random(count))
    return RequestRecords(
        intended_s=started_s - 0.01 if is_open_loop else started_s,
        started_s=started_s,
        finished_s=started_s + rng.random(count),
        status=rng.choice(np.array([0, 200, 429], dtype=np.int16), count),
        connection=rng.integers(0, 8, count).astype(np.int32),
    )


@given(count=st.integers(0, 50), is_open_loop=st.booleans())
def test_what_is_written_is_read(
    count: int, is_open_loop: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Every column comes back with its values and its type."""
    given_records = some_records(count, is_open_loop=is_open_loop)
    path = tmp_path_factory.getbasetemp() / "requests.npz"
    path.write_bytes(records.encode(given_records))
    found = records.read(path)
    assert found is not None
    for name in records.COLUMNS:
        before, after = getattr(given_records, name), getattr(found, name)
        assert before.dtype == after.dtype
        np.testing.assert_array_equal(before, after)


def test_no_file_is_none_and_a_broken_one_is_said(tmp_path: pathlib.Path) -> None:
    """A missing file is no error; a broken one is named."""
    assert records.read(tmp_path / "none.npz") is None
    broken = tmp_path / "broken.npz"
    broken.write_bytes(b"PK not really")
    with pytest.raises(UsageError, match=r"broken\.npz"):
        records.read(broken)
