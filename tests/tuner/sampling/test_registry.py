"""Samplers by name, and what is wrong use."""

from __future__ import annotations

import inspect
import pathlib
import sys
from typing import Any

import optuna
import pytest
from optuna.samplers import BaseSampler

from tests.fakes import surfaces
from tuner.errors import UsageError
from tuner.sampling import registry
from tuner.sampling.history import PROPOSAL


def test_the_names_are_those_of_the_command() -> None:
    """Each is an Optuna sampler, or says what it lacks."""
    own = ("gp", "structured", "random", "epsilon-greedy", "skopt", "gpy", "tpe")
    peers = ("prediction", "ridge", "hill-climb", "optuna-gp", "smac", "botorch")
    assert (*own, *peers) == registry.NAMES
    for name in registry.NAMES:
        if registry.is_installed(name):
            assert isinstance(registry.create(name, seed=0, initial=5), BaseSampler)


def test_the_page_names_every_sampler_and_option() -> None:
    """docs/samplers.md cannot drift from what can be made."""
    page = (pathlib.Path(__file__).parents[3] / "docs" / "samplers.md").read_text(encoding="utf-8")
    for name, sampler in registry.SAMPLERS.items():
        assert f"| `{name}` |" in page
        for option in set(inspect.signature(sampler).parameters) - {"candidates"}:
            assert f"| `{option}` |" in page


@pytest.mark.parametrize(
    ("name", "given", "text"),
    [
        ("gpp", {}, "sampler 'gpp' is not known, did you mean 'gp'"),
        ("epsilon_greedy", {}, "did you mean 'epsilon-greedy'"),
        ("epsilon-greedy", {"epsilom": 0.2}, "has no option 'epsilom', did you mean 'epsilon'"),
        ("random", {"epsilon": 0.2}, "sampler 'random' has no option 'epsilon'"),
        ("epsilon-greedy", {"epsilon": 1.5}, "epsilon is 1.5; expected a probability"),
    ],
)
def test_wrong_use_says_what_would_be_right(name: str, given: dict[str, Any], text: str) -> None:
    """Names, options and values are checked when a sampler is made."""
    with pytest.raises(UsageError) as caught:
        registry.create(name, seed=0, initial=5, **given)
    assert text in str(caught.value)


@pytest.mark.parametrize("seed", [-1, 1.5, True])
def test_a_seed_is_a_whole_number(seed: Any) -> None:
    """A seed that cannot seed is refused at once, not in the first trial."""
    with pytest.raises(UsageError, match="seed is"):
        registry.create("gp", seed=seed, initial=5)


@pytest.mark.parametrize("name", registry.OPTIONAL_DEPENDENCIES)
def test_a_missing_extra_says_how_to_install_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its library the error is one line with the command."""
    needed = registry.OPTIONAL_DEPENDENCIES[name]
    for module in needed.modules:
        monkeypatch.setitem(sys.modules, module, None)  # what Python takes for "not there"
    assert not registry.is_installed(name)
    with pytest.raises(UsageError, match=rf"{needed.package}: pip install '.\[{needed.extra}\]'"):
        registry.create(name, seed=0, initial=5)


def test_greed_repeats_the_best_mean_and_not_the_luckiest() -> None:
    """With epsilon 0 the incumbent is measured again; a first lucky value loses its place by that."""
    sampler = registry.create(
        "epsilon-greedy", seed=0, initial=2, candidates=surfaces.small_candidates(), epsilon=0.0
    )
    study = optuna.create_study(sampler=sampler)
    space = {"a": optuna.distributions.IntDistribution(1, 12)}
    for value, objective in ((3, 8.0), (7, 10.0)):
        study.enqueue_trial({"a": value})
        study.tell(study.ask(space), objective)
    assert study.ask(space).params == {"a": 3}
    study.tell(2, 14.0)
    again = study.ask(space)
    assert again.params == {"a": 7}
    assert study.trials[-1].user_attrs[PROPOSAL]["origin"] == "replicate"
