"""Kept profiles: what is read again, what is not found, what is left out."""

import asyncio
import contextlib
import dataclasses
import os
import shutil
import sqlite3
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.deployment import profile_store
from serving.deployment.dispatch.model_load import LoadReport
from serving.deployment.profile_store import FILE, ProfileStore, key_of
from serving.deployment.profiler import ModelProfile, RecentDurations
from serving.model_spec import ModelSpec
from serving.settings import ServingSettings
from serving.state.records import SqliteRecords
from serving.system.fingerprint import fingerprint_of
from serving.values import Signature, StageTimes, TensorSpec

TIMES = st.floats(0.0, 1e3, allow_subnormal=False)
SIGNATURES = st.builds(
    Signature,
    inputs=st.just((TensorSpec(name="x", datatype="FP32", shape=(-1, 3)),)),
    outputs=st.just((TensorSpec(name="y", datatype="BYTES", shape=(-1,)),)),
    platform=st.text(max_size=5),
    reads_json=st.booleans(),
)


@st.composite
def profiles(draw):
    """Of durations as they are kept: microseconds."""
    signature = draw(SIGNATURES)
    sizes = draw(st.sets(st.integers(1, 64), min_size=1, max_size=4))
    time = TIMES.map(lambda seconds: round(seconds, 6))
    warmup = {"source": "file", "batch_s": {"1": 0.5}}
    return ModelProfile(
        signature=signature,
        load_s=draw(time),
        batch_s={size: draw(time) for size in sizes},
        memory_bytes=draw(st.integers(0, 2**40)),
        told=LoadReport(
            signature,
            draw(time),
            warmup,
            draw(st.sampled_from([None, "cpu", "cuda"])),
            optimised=draw(st.none() | st.text(max_size=5)),
        ),
        stages_s={size: (draw(time), draw(time), draw(time)) for size in sizes},
    )


ONE = ModelProfile(
    signature=Signature(inputs=(TensorSpec(name="x", datatype="FP32", shape=(-1,)),), outputs=()),
    load_s=0.01,
    batch_s={1: 0.001},
    memory_bytes=4096,
    told=LoadReport(Signature(inputs=(), outputs=()), None, {}, None),
)


@contextlib.contextmanager
def opened(folder):
    kept = ProfileStore.of_folder(folder)
    try:
        yield kept
    finally:
        kept.close()


@given(profiles())
def test_a_profile_is_read_as_it_was_kept(profile):
    """All that others need to know of it."""
    again = ModelProfile.from_json(profile.as_json())
    assert dataclasses.replace(again, told=profile.told) == profile
    assert (again.told.warmup, again.told.device) == (profile.told.warmup, profile.told.device)


def test_what_is_kept_is_found_after_a_restart(tmp_path):
    """Under its key, and under no other; without a key nothing is kept."""
    with opened(tmp_path) as kept:
        asyncio.run(kept.keep("a", ONE))
        asyncio.run(kept.keep(None, ONE))
    with opened(tmp_path) as kept:
        assert kept.of("a").batch_s == ONE.batch_s
        assert kept.of("b") is kept.of(None) is None


def test_rows_that_make_no_sense_are_left_out(tmp_path, caplog):
    """They are told in one line, and the others are read."""
    with opened(tmp_path) as kept:
        for name in "abc":
            asyncio.run(kept.keep(name, ONE))
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as disk, disk:
        disk.execute("UPDATE records SET text = '{}' WHERE name = 'a'")
        disk.execute("UPDATE records SET kind = 'colour' WHERE name = 'b'")
    with opened(tmp_path) as kept:
        assert (kept.of("a"), kept.of("b")) == (None, None)
        assert kept.of("c") is not None
    (line,) = caplog.records
    assert (line.levelname, line.count) == ("WARNING", 2)


@pytest.mark.parametrize("text", ["no database at all", ""])
def test_a_file_that_cannot_be_read_is_no_obstacle(tmp_path, text):
    """Profiles are known while the server runs."""
    (tmp_path / FILE).write_text(text * 200)
    with opened(tmp_path) as kept:
        asyncio.run(kept.keep("a", ONE))
        assert kept.of("a") is ONE


def test_the_oldest_go(tmp_path, monkeypatch):
    """Where there are more than may be kept; what was measured again is new."""
    monkeypatch.setattr(profile_store, "MAX_SAVED", 2)
    with opened(tmp_path) as kept:
        for name in "abac":
            asyncio.run(kept.keep(name, ONE))
    with opened(tmp_path) as kept:
        assert [name for name in "abc" if kept.of(name)] == ["a", "c"]


def test_profiles_that_come_together_are_written_together(tmp_path):
    """A server that ends with thousands of models syncs the disk a few times."""
    writes = []

    class Counting(SqliteRecords):
        def write(self, changes):
            writes.append(len(changes))
            super().write(changes)

    async def keep(kept):
        await asyncio.gather(*(kept.keep(str(number), ONE) for number in range(100)))

    kept = ProfileStore(Counting(tmp_path / FILE))
    asyncio.run(keep(kept))
    kept.close()
    assert (sum(writes), len(writes) <= 2) == (100, True)
    with opened(tmp_path) as again:
        assert all(again.of(str(number)) for number in range(100))


STAGES = st.tuples(*[st.floats(0, 1)] * 3)


@given(
    st.lists(st.floats(0, 1), max_size=15),
    st.lists(st.tuples(st.sampled_from([1, 2, 3]), STAGES), max_size=40),
)
def test_what_was_measured_while_serving_teaches_a_profile(loads_s, batches):
    """The median of the last ten, from five on, of the sizes that it has; nothing else changes."""
    profile = dataclasses.replace(ONE, batch_s={1: 7.0, 2: 8.0, 4: 9.0})
    measured = RecentDurations(profile)
    for load_s in loads_s:
        measured.load(load_s)
    for size, stages in batches:
        measured.batch(size, StageTimes(99.0, *stages))
    taught = measured.taught()
    seen = {size: [stages for one, stages in batches if one == size][-10:] for size in (1, 2)}
    known = {size for size, stages in seen.items() if len(stages) >= 5}
    assert (taught is profile) == (not known and len(loads_s) < 5)
    if len(loads_s) >= 5:
        assert taught.load_s == statistics.median(loads_s[-10:])
    assert set(taught.batch_s) == {1, 2, 4}
    assert set(taught.stages_s) == known
    for size in known:
        sums = [inputs_s + model_s + outputs_s for inputs_s, model_s, outputs_s in seen[size]]
        assert taught.batch_s[size] == statistics.median(sums)
    assert set(measured._batches) == {1, 2, 4}  # however many sizes are seen
    assert all(taught.batch_s[size] == profile.batch_s[size] for size in {1, 2, 4} - known)


def found_key(card, settings):
    return key_of(card, settings, fingerprint_of(card.kind, card.path))


def test_a_key_tells_what_a_profile_depends_on(tmp_path):
    """Other content, other samples or other limits are another key, whatever the file's time; a copy is no other."""
    file, sample = tmp_path / "m.onnx", tmp_path / "s.npz"
    file.write_bytes(b"1")
    sample.write_bytes(b"1")
    card = ModelSpec(name="a", version="1", kind="onnx", path=file)
    settings = ServingSettings()
    first = found_key(card, settings)
    keys = {first, found_key(dataclasses.replace(card, sample=sample), settings)}
    for change in (
        {"replica.cpu": 1},
        {"replica.threads": 2},
        {"replica.memory_mb": 512},
        {"accelerator.device": "cpu"},
        {"batching.max_size": 3},
    ):
        keys.add(found_key(card, settings.with_changes(change)))
    keys.add(found_key(dataclasses.replace(card, kind="torch"), settings))
    assert len(keys) == 8
    twin = tmp_path / "other.onnx"
    shutil.copy(file, twin)
    assert found_key(dataclasses.replace(card, name="b", path=twin), settings) == first
    times = file.stat()
    file.write_bytes(b"2")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert found_key(card, settings) not in keys


def test_files_that_cannot_tell_have_no_key(tmp_path):
    """A module's name, a folder, code, no file at all."""
    settings = ServingSettings()
    (tmp_path / "m.py").touch()
    for path in (None, tmp_path, tmp_path / "none.py:Model", tmp_path / "m.py:Model"):
        card = ModelSpec(name="a", version="1", kind="python", path=path)
        assert found_key(card, settings) is None


def test_samples_that_have_gone_have_no_key(tmp_path):
    """Their model is measured, and nothing is kept; it is no error."""
    file = tmp_path / "m.onnx"
    file.write_bytes(b"1")
    card = ModelSpec(name="a", version="1", kind="onnx", path=file, sample=tmp_path / "s.npz")
    assert found_key(card, ServingSettings()) is None
