"""A table in its folder: written launch by launch, read back, packed, and cut off by a kill."""

from __future__ import annotations

import gzip
import pathlib
from collections.abc import Callable

import pytest

from tests.fakes import recorded
from tuner.errors import InvalidTable, UsageError
from tuner.lab.tables import table_files
from tuner.lab.tables.table import BenchmarkTable, RecordedEvaluation
from tuner.lab.tables.table_files import EVALUATIONS, HEAD, HISTOGRAMS, TableFolder


def written(path: pathlib.Path, table: BenchmarkTable, *, finish: bool = True) -> pathlib.Path:
    with TableFolder(path) as folder:
        folder.begin(table.head)
        for launch in table.evaluations:
            folder.append(launch)
        if finish:
            folder.finish(table.head)
    return path


def same(first: RecordedEvaluation, second: RecordedEvaluation) -> bool:
    """To six digits."""
    return (
        (first.number, first.cell, first.sweep, first.outcome.status, first.outcome.cause)
        == (second.number, second.cell, second.sweep, second.outcome.status, second.outcome.cause)
        and (first.histogram, first.errors) == (second.histogram, second.errors)
        and first.noise == second.noise
        and [block.requests for block in first.blocks]
        == [block.requests for block in second.blocks]
        and [block.mean_ms for block in first.blocks]
        == pytest.approx([block.mean_ms for block in second.blocks], rel=1e-5)
    )


@pytest.mark.parametrize("finish", [True, False])
def test_what_is_written_is_read(tmp_path: pathlib.Path, finish: bool) -> None:
    table = recorded.table()
    found = table_files.read(written(tmp_path / "toy-20", table, finish=finish))
    assert found.head == (
        table.head if finish else recorded.head(is_finished=table.head.is_finished)
    )
    assert len(found.evaluations) == len(table.evaluations)
    assert all(map(same, found.evaluations, table.evaluations))
    assert any(launch.outcome.cause == "oom" for launch in found.evaluations)


def test_a_finished_table_is_packed_and_small(tmp_path: pathlib.Path) -> None:
    path = written(tmp_path / "toy-20", recorded.table())
    assert sorted(file.name for file in path.iterdir()) == [
        f"{EVALUATIONS}.gz",
        f"{HISTOGRAMS}.gz",
        HEAD,
    ]


def test_packing_gives_the_same_bytes_each_time(tmp_path: pathlib.Path) -> None:
    table = recorded.table()
    first, second = (written(tmp_path / name, table) for name in ("a", "b"))
    for name in (f"{EVALUATIONS}.gz", f"{HISTOGRAMS}.gz", HEAD):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_a_packed_table_is_gone_on_with(tmp_path: pathlib.Path) -> None:
    table = recorded.table()
    path = written(tmp_path / "toy-20", table)
    with TableFolder(path) as folder:
        folder.begin(table.head)
        folder.append(
            RecordedEvaluation(
                **{
                    **{
                        name: getattr(table.evaluations[0], name)
                        for name in RecordedEvaluation.__slots__
                    },
                    "number": 10_000,
                }
            )
        )
        folder.finish(table.head)
    assert [one.number for one in table_files.read(path).evaluations][-1] == 10_000


@pytest.mark.parametrize("name", [EVALUATIONS, HISTOGRAMS])
def test_a_row_that_a_kill_has_cut_off_is_left_out(tmp_path: pathlib.Path, name: str) -> None:
    table = recorded.table()
    path = written(tmp_path / "toy-20", table, finish=False)
    whole = (path / name).read_bytes()
    (path / name).write_bytes(whole[:-5])
    before = table_files.read(path).evaluations
    assert len(before) >= len(table.evaluations) - 1
    with TableFolder(path) as folder:
        folder.begin(table.head)
    assert (path / name).read_bytes() == whole[: whole[:-5].rfind(b"\n") + 1]


def test_two_processes_do_not_record_into_one_folder(tmp_path: pathlib.Path) -> None:
    table = recorded.table()
    with TableFolder(tmp_path / "a") as first, TableFolder(tmp_path / "a") as second:
        first.begin(table.head)
        with pytest.raises(UsageError, match="another `tune record`"):
            second.begin(table.head)


def _spoilt_head(path: pathlib.Path) -> None:
    (path / HEAD).write_text("version: 9\n")


def _no_yaml(path: pathlib.Path) -> None:
    (path / HEAD).write_text("a: [\n")


def _no_rows(path: pathlib.Path) -> None:
    (path / f"{EVALUATIONS}.gz").unlink()


def _no_gzip(path: pathlib.Path) -> None:
    (path / f"{EVALUATIONS}.gz").write_bytes(b"x")


def _no_model(path: pathlib.Path) -> None:
    lines = (path / HEAD).read_text().splitlines()
    (path / HEAD).write_text("\n".join(line for line in lines if not line.startswith("default")))


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (_spoilt_head, "version: expected 1 or 2"),
        (_no_yaml, "no YAML"),
        (_no_rows, "evaluations.csv.gz: cannot be read"),
        (_no_gzip, "evaluations.csv.gz: cannot be read"),
        (_no_model, "table.yaml"),
    ],
)
def test_what_is_wrong_is_one_line(
    tmp_path: pathlib.Path, spoil: Callable[[pathlib.Path], None], told: str
) -> None:
    path = written(tmp_path / "toy-20", recorded.table())
    spoil(path)
    with pytest.raises(InvalidTable, match=told) as caught:
        table_files.read(path)
    assert "\n" not in str(caught.value)


def test_no_folder_is_one_line(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InvalidTable, match="tune record"):
        table_files.read(tmp_path / "none")


def test_a_table_of_format_1_is_converted_when_it_is_read(tmp_path: pathlib.Path) -> None:
    """Other names of files, of a key and of columns."""
    table = recorded.table()
    path = written(tmp_path / "toy-20", table)
    before = table_files.read(path)
    head = (path / HEAD).read_text().replace("version: 2", "version: 1")
    profile = "profile: {client_batch: 1, seconds: 14.0, batches: []}\n"  # no longer recorded
    (path / "surface.yaml").write_text(head.replace("\nspawner:", "\nhome:") + profile)
    (path / HEAD).unlink()
    for name, old in ((EVALUATIONS, "cells.csv"), (HISTOGRAMS, HISTOGRAMS)):
        first, *rows = gzip.decompress((path / f"{name}.gz").read_bytes()).decode().split("\n")
        (path / f"{name}.gz").unlink()
        for new, was in (("evaluation", "launch"), ("neighbour_cpu_s", "foreign_cpu_s")):
            first = ",".join(was if column == new else column for column in first.split(","))
        (path / f"{old}.gz").write_bytes(gzip.compress("\n".join([first, *rows]).encode()))
    found = table_files.read(path)
    assert table_files.is_table(path)
    assert found.head == before.head
    assert len(found.evaluations) == len(before.evaluations)
    assert all(map(same, found.evaluations, before.evaluations))
