"""Samplers on recorded tables: paired, complete, and the same whoever counts them."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import numpy as np
import pytest

from tests.fakes import recorded
from tuner.errors import UsageError
from tuner.lab import prepared_table, table_benchmark
from tuner.lab.table_benchmark import TableBenchmarkSpec
from tuner.measurement.noninferiority import bound_mean

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, ...]:
    """Two small tables on disk."""
    made = []
    for seed in (0, 1):
        table = recorded.table(passes=4, every=6, seed=seed)
        head = dataclasses.replace(table.head, name=f"toy-{seed}")
        folder = tmp_path_factory.mktemp("tables") / head.name
        made.append(recorded.written(folder, dataclasses.replace(table, head=head)))
    return tuple(made)


@pytest.fixture(scope="module")
def order(tables: tuple[pathlib.Path, ...]) -> TableBenchmarkSpec:
    return TableBenchmarkSpec(
        tables=tables,
        samplers=("ridge", "random", "hill-climb", "prediction"),
        reference="ridge",
        trials=16,
        seeds=(0, 1, 2, 3, 4),
        jobs=1,
    )


@pytest.fixture(scope="module")
def record(order: TableBenchmarkSpec):
    return table_benchmark.compare(order, name="c")


def test_every_sampler_has_its_searches_on_every_table(record) -> None:
    for table in record.tables:
        assert [one.sampler for one in table.contestants] == list(record.samplers)
        for one in table.contestants:
            assert np.shape(one.regrets) == np.shape(one.seconds) == (5, 16)


def test_the_sampler_prediction_takes_no_part_where_nothing_is_predicted() -> None:
    """An open loop is not predicted."""
    table = recorded.table(passes=4, every=6)
    head = dataclasses.replace(table.head, rate_per_s=50.0)
    for made, is_left_out in ((table, False), (dataclasses.replace(table, head=head), True)):
        ground = prepared_table.prepare_table(made)
        assert (table_benchmark._why_not(ground, "prediction") is not None) == is_left_out


def test_the_figures_can_be_computed_from_what_is_written(record) -> None:
    """Regrets per seed are enough for every difference and bound."""
    data = json.loads(json.dumps(record.as_json()))
    for table in data["tables"]:
        by_name = {one["sampler"]: np.array(one["regrets"]) for one in table["contestants"]}
        for found in table["noninferiority"]:
            place = found["budget"] - 1
            apart = by_name["ridge"][:, place] - by_name[found["peer"]][:, place]
            again = bound_mean(apart, data["margin"])
            assert found["difference"] == pytest.approx(again.mean)
            assert found["upper"] == pytest.approx(again.upper)
            assert found["corrected_p"] >= found["p"]


def test_over_tables_a_table_is_one_unit(record) -> None:
    assert {(one.peer, one.budget) for one in record.over_tables} == {
        ("random", 15),
        ("hill-climb", 15),
        ("prediction", 15),
    }
    for one in record.over_tables:
        assert one.units == 2
        each = [
            found.difference
            for table in record.tables
            for found in table.noninferiority
            if found.peer == one.peer
        ]
        assert one.difference == pytest.approx(np.mean(each))


def test_one_table_says_nothing_of_others(order: TableBenchmarkSpec) -> None:
    alone = dataclasses.replace(order, tables=order.tables[:1], seeds=(0, 1))
    assert table_benchmark.compare(alone, name="c").over_tables == ()


def test_the_same_seeds_give_the_same(record, order: TableBenchmarkSpec) -> None:
    """Whatever other seeds there are beside them."""
    again = table_benchmark.compare(dataclasses.replace(order, seeds=(0, 1)), name="c")
    for one, other in zip(record.tables, again.tables, strict=True):
        assert [each.regrets[:2] for each in one.contestants] == [
            each.regrets for each in other.contestants
        ]


@pytest.mark.parametrize(
    ("trials", "budgets"), [(50, (15, 30, 50)), (49, (15, 30)), (15, (15,)), (7, (7,))]
)
def test_budgets_are_those_that_are_reached(trials: int, budgets: tuple[int, ...]) -> None:
    assert table_benchmark.budgets_of(trials) == budgets


def test_the_reference_is_the_first_and_never_alone() -> None:
    assert table_benchmark.samplers_of(["random", "gp", "random"], "gp") == ("gp", "random")
    with pytest.raises(UsageError, match="other than the reference"):
        table_benchmark.samplers_of(["gp"], "gp")


def test_a_sampler_that_cannot_be_made_is_refused_first(order: TableBenchmarkSpec) -> None:
    said: list[str] = []
    wrong = dataclasses.replace(order, samplers=("ridge", "rigde"))
    with pytest.raises(UsageError, match="did you mean 'ridge'"):
        table_benchmark.compare(wrong, name="c", say=said.append)
    assert said == []
