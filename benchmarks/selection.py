"""Selection policies over five models of different quality, the best of which breaks and recovers.

    apt-get install dataset-fashion-mnist
    pip install '.[sklearn]'
    python benchmarks/selection.py [--queries 20000] [--seed 1] [--write] [--json]

The scenario of Clipper (Crankshaw et al., NSDI 2017, section 5): queries on real images, feedback
for each, one model degraded from a quarter of the run to its half. Models are trained here on part
of Fashion-MNIST, their predictions on the 10,000 test images computed once, and every policy
replays the same queries through the code that a server drives; feedback comes 50 queries late.
Prints errors against the best single model, the queries until a policy is back after each change,
and what perturbed images do to confidence. Ends with 1 when a target is missed. Two minutes on two
cores; `--write` also draws the figure.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import html
import random
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import result
import threadpoolctl
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

from serving.models import onnx
from serving.models import sklearn as linear
from serving.selection.application import Application
from serving.selection.decisions import DecisionLog
from serving.selection.model_output import ModelOutput, Scores
from serving.selection.policy import Query
from serving.selection.query_session import Selector
from serving.selection.stores.state_store import MemoryStore
from serving.selection.user_states import UserStates
from zoo import fashion_mnist

ZOO = fashion_mnist.SAMPLE.parent
TRAINED_ON = 20_000
PERTURBED = 1_000
DELAY = 50
WINDOW = 500
"""Queries over which an error rate is taken when it is asked whether a policy is back."""
MARGIN = 0.03
"""Back is: within so much of the error of the best model of that time."""
MOST_BACK = 3_000
LABELS = tuple(str(index) for index in range(10))
CONFIDENT = 0.8
SUSPICIOUS = Application(name="default").suspicious_threshold
BROKEN_SHARE = 0.9
"""Of the degraded model's answers, how many belong to another image."""

Rows = NDArray[np.float64]  # (n, 10)

POLICIES: tuple[tuple[str, str, dict[str, Any], dict[str, float]], ...] = (
    ("split", "split", {"by": "query"}, {}),
    ("exp3", "exp3", {}, {}),
    ("exp3, no sharing", "exp3", {"sharing": 0.0}, {}),
    ("epsilon-greedy", "epsilon-greedy", {}, {}),
    ("thompson", "thompson", {}, {}),
    ("thompson, no forgetting", "thompson", {"memory": None}, {}),
    ("exp4", "exp4", {}, {}),
    ("exp4, by majority", "exp4", {"vote": "majority"}, {}),
    (
        "exp4, costs",
        "exp4",
        {},
        {"linear": 0.002, "trees": 0.005, "mlp": 0.003, "resnet": 0.03, "damaged": 0.002},
    ),
    ("per-user", "per-user", {}, {}),
)
"""Name in the tables, policy, options, costs."""
JUDGED = ("exp3", "epsilon-greedy", "thompson", "exp4", "per-user")
"""Policies with their defaults that must be back after each change."""
ENSEMBLES = ("exp4", "per-user")
"""Policies with their defaults that must beat the best single model."""


class Models:
    """Five models: linear, trees, a small network, a deep one, and a linear one with noise in it."""

    NAMES = ("linear", "trees", "mlp", "resnet", "damaged")

    def __init__(self, seed: int) -> None:
        images, labels = fashion_mnist.load("train")
        chosen = np.random.default_rng(seed).permutation(len(labels))[:TRAINED_ON]
        x, y = _pixels(images[chosen]), labels[chosen]
        self._trees = RandomForestClassifier(30, max_depth=10, random_state=seed).fit(x, y)
        network = MLPClassifier((64,), max_iter=20, random_state=seed)
        with warnings.catch_warnings():
            # Twenty passes are meant, whatever the optimizer would still like.
            warnings.simplefilter("ignore", ConvergenceWarning)
            self._mlp = network.fit(x, y)
        self._linear = linear.Model(ZOO / "linear" / "model.npz", threads=1)
        self._resnet = onnx.Model(ZOO / "resnet" / "model.onnx", threads=2)
        self.coefficients = _coefficients()
        noise = np.random.default_rng(seed).normal(size=self.coefficients.shape)
        self._damaged = self.coefficients + noise * 1.5 * self.coefficients.std()

    def predict(self, images: NDArray[np.uint8]) -> dict[str, Rows]:
        """(n, 1, 32, 32) -> probabilities of each model."""
        x = _pixels(images)
        scores, deep = [], []
        for start in range(0, len(images), 64):
            batch = {"image": fashion_mnist.repeat(images[start : start + 64])}
            scores.append(self._linear.predict_batch(batch)["scores"])
            deep.append(self._resnet.predict_batch(batch)["scores"])
        flat = images.reshape(len(images), -1).astype(np.float64)
        rows = {
            "linear": np.concatenate(scores),
            "trees": self._trees.predict_proba(x),
            "mlp": self._mlp.predict_proba(x),
            "resnet": np.concatenate(deep),
            "damaged": _softmax(flat @ self._damaged.T),
        }
        return {name: np.asarray(rows[name], dtype=np.float64) for name in self.NAMES}


def _pixels(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(n, 1, 32, 32) bytes -> (n, 784) in [0, 1]: the images without their frame."""
    return images[:, 0, 2:-2, 2:-2].reshape(len(images), -1).astype(np.float32) / 255


def _coefficients() -> Rows:
    """(10, 1024): the bundled linear model, its three equal channels as one."""
    with np.load(ZOO / "linear" / "model.npz") as stored:
        return np.asarray(stored["coef"].reshape(10, 3, -1).sum(axis=1), dtype=np.float64)


def _softmax(x: Rows) -> Rows:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def answers(rows: Mapping[str, Rows]) -> dict[str, list[ModelOutput]]:
    return {
        name: [Scores(LABELS, tuple(row)) for row in each.tolist()] for name, each in rows.items()
    }


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The queries of a run, and what every model says to each."""

    labels: NDArray[np.int64]  # (q,)
    said: Mapping[str, list[ModelOutput]]
    """Model -> q answers."""
    wrong: Mapping[str, NDArray[np.bool_]]
    """Model -> (q,)."""
    phases: tuple[tuple[str, int, int], ...]
    """Name, first query, first query after."""


def drawn(rows: Mapping[str, Rows], labels: NDArray[np.int64], queries: int, seed: int) -> Run:
    """Draw the queries, and break `resnet` for a quarter of them."""
    rng = np.random.default_rng(seed)
    picked = rng.integers(len(labels), size=queries)
    begin, end = queries // 4, queries // 2
    said = {name: each[picked] for name, each in rows.items()}
    spoilt = begin + np.flatnonzero(rng.random(end - begin) < BROKEN_SHARE)
    said["resnet"] = said["resnet"].copy()
    said["resnet"][spoilt] = rows["resnet"][rng.integers(len(labels), size=len(spoilt))]
    return Run(
        labels=labels[picked],
        said=answers(said),
        wrong={name: each.argmax(axis=1) != labels[picked] for name, each in said.items()},
        phases=(("before", 0, begin), ("degraded", begin, end), ("restored", end, queries)),
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """One policy's run."""

    wrong: NDArray[np.bool_]  # (q,)
    asked: float
    """Models per query."""
    cost: float
    """Mean cost per query, in the unit of loss."""
    us: float
    """Microseconds per query with its feedback."""
    contexts: UserStates
    selector: Selector


def replay(
    policy: tuple[str, str, dict[str, Any], dict[str, float]], run: Run, seed: int
) -> Replayed:
    """Every query through selector, log and feedback, as a hub would do it."""
    _, name, options, costs = policy
    application = Application(
        name="fashion", models=Models.NAMES, policy=name, options=options, costs=costs
    )
    selector = Selector(application)
    contexts = UserStates(selector, MemoryStore())
    log, rng = DecisionLog(), random.Random(seed)
    wrong, asked, cost = np.zeros(len(run.labels), dtype=bool), 0, 0.0
    late: collections.deque[tuple[int, str]] = collections.deque()
    began_s = time.perf_counter()
    for number, label in enumerate(run.labels.tolist()):
        pending = selector.begin(Query(id=number), contexts.state(""), draw=rng.random(), now_s=0.0)
        for model in pending.models:
            pending.record_output(model, run.said[model][number])
        finished = pending.finish()
        log.put(finished.decision)
        wrong[number] = finished.result.output != str(label)
        asked += len(pending.models)
        cost += sum(costs.get(model, 0.0) for model in pending.models)
        late.append((number, str(label)))
        if len(late) > DELAY:
            decision = log.find(late[0][0])
            assert decision is not None
            contexts.observe(decision, late.popleft()[1])
            log.join(decision)
    queries = len(run.labels)
    return Replayed(
        wrong=wrong,
        asked=asked / queries,
        cost=cost / queries,
        us=1e6 * (time.perf_counter() - began_s) / queries,
        contexts=contexts,
        selector=selector,
    )


def back_after(wrong: NDArray[np.bool_], run: Run, phase: int) -> int | None:
    """Queries from the start of a phase until a policy is back; None: not within the phase.

    The end of the first window in which it errs at most `MARGIN` more than the best model of that
    phase on the same queries: how hard these are then says nothing.
    """
    _, begin, end = run.phases[phase]
    best = min((each[begin:end] for each in run.wrong.values()), key=lambda each: each.mean())
    more = np.cumsum(np.concatenate([[0], wrong[begin:end].astype(int) - best]))
    there = np.flatnonzero(more[WINDOW:] - more[:-WINDOW] <= MARGIN * WINDOW)
    return int(there[0]) + WINDOW if len(there) else None


def perturbations(
    images: NDArray[np.uint8], labels: NDArray[np.int64], coefficients: Rows, seed: int
) -> dict[str, NDArray[np.uint8]]:
    """The same images, broken in several ways."""
    rng = np.random.default_rng(seed)
    inside = np.zeros(images.shape[-2:], dtype=bool)
    inside[2:-2, 2:-2] = True
    x = images.astype(np.float64)

    def bytes_of(values: Rows) -> NDArray[np.uint8]:
        return np.where(inside, values, 0).clip(0, 255).round().astype(np.uint8)

    # Fast gradient sign (Goodfellow et al. 2015): for a linear model the gradient is its weights.
    slope = coefficients.reshape(10, 1, *inside.shape)
    scores = x.reshape(len(x), -1) @ coefficients.T
    scores[np.arange(len(x)), labels] = -np.inf
    towards = slope[scores.argmax(axis=1)] - slope[labels]
    half = x.copy()
    half[..., :16, :] = 0
    return {
        "as they are": images,
        "noise, sd 25": bytes_of(x + rng.normal(scale=25, size=x.shape)),
        "noise, sd 75": bytes_of(x + rng.normal(scale=75, size=x.shape)),
        "upper half black": bytes_of(half),
        "upside down": images[..., ::-1, :].copy(),
        "inverted": bytes_of(255 - x),
        "pixels shuffled": bytes_of(
            x.reshape(len(x), -1)[:, rng.permutation(x[0].size)].reshape(x.shape)
        ),
        "adversarial to linear, 8": bytes_of(x + 8 * np.sign(towards)),
        "adversarial to linear, 24": bytes_of(x + 24 * np.sign(towards)),
    }


def judged(
    replayed: Replayed, rows: Mapping[str, Rows], labels: NDArray[np.int64]
) -> dict[str, float]:
    """How right, confident and suspicious a learnt state is on some images."""
    state, said = replayed.contexts.state(""), answers(rows)
    right, confidence, suspicious = [], [], []
    for number, label in enumerate(labels.tolist()):
        pending = replayed.selector.begin(Query(id=number), state, draw=0.5, now_s=0.0)
        for model in pending.models:
            pending.record_output(model, said[model][number])
        found = pending.finish().result
        right.append(found.output == str(label))
        confidence.append(found.confidence)
        suspicious.append(found.is_suspicious)
    is_right, is_given = np.array(right), np.array(confidence) >= CONFIDENT
    return {
        "right": float(is_right.mean()),
        "confidence": float(np.mean(confidence)),
        "suspicious": float(np.mean(suspicious)),
        "given": float(is_given.mean()),
        "right_of_given": float(is_right[is_given].mean()),
    }


def measure(queries: int, seed: int) -> dict[str, Any]:
    """Train, predict, replay, perturb."""
    with threadpoolctl.threadpool_limits(limits=2):
        models = Models(seed)
        images, labels = fashion_mnist.load("test")
        rows = models.predict(images)
        several = perturbations(images[:PERTURBED], labels[:PERTURBED], models.coefficients, seed)
        perturbed = {name: models.predict(each) for name, each in several.items()}
    run = drawn(rows, labels, queries, seed)
    replays = {policy[0]: replay(policy, run, seed) for policy in POLICIES}
    return {
        "run": run,
        "replays": replays,
        "perturbed": {
            name: judged(replays["exp4"], each, labels[:PERTURBED])
            for name, each in perturbed.items()
        },
        "accuracy": {
            name: float((each.argmax(axis=1) == labels).mean()) for name, each in rows.items()
        },
    }


def rates(wrong: NDArray[np.bool_], run: Run) -> list[float]:
    """Error of each phase, and of all."""
    return [float(wrong[begin:end].mean()) for _, begin, end in run.phases] + [float(wrong.mean())]


def columns(run: Run) -> tuple[str, ...]:
    """Heads of the columns that hold errors."""
    return (*(f"{name}, %" for name, _, _ in run.phases), "all, %")


def errors_of_models(run: Run, singles: Mapping[str, list[float]]) -> result.Table:
    """Each model alone, and whoever was best."""
    oracle = [min(each[phase] for each in singles.values()) for phase in range(len(run.phases))]
    spans = [end - begin for _, begin, end in run.phases]
    oracle.append(float(np.average(oracle, weights=spans)))
    return result.Table(
        title="Errors of single models",
        head=("model", *columns(run)),
        rows=[
            (name, *(f"{100 * rate:.2f}" for rate in each))
            for name, each in (*singles.items(), ("the best of each phase", oracle))
        ],
    )


def errors_of_policies(
    run: Run,
    replays: Mapping[str, Replayed],
    back: Mapping[str, list[int | None]],
    best_name: str,
) -> result.Table:
    """Each policy, and how soon it was back."""
    best = int(run.wrong[best_name].sum())
    rows = [
        (
            name,
            *(f"{100 * rate:.2f}" for rate in rates(each.wrong, run)),
            f"{int(each.wrong.sum()) - best:+,}",
            *("never" if after is None else f"{after:,}" for after in back[name]),
            f"{each.asked:.2f}",
        )
        for name, each in replays.items()
    ]
    costly = replays["exp4, costs"]
    return result.Table(
        title="Errors of policies, and queries until they are back\n\n"
        f"Regret: errors more than {best_name}, the best single model in hindsight. Back: "
        f"the end of the first {WINDOW} queries with errors at most {100 * MARGIN:g} "
        "percentage points above those of the best model of that phase on the same queries. "
        "With costs (`resnet` 0.03, the "
        f"others 0.002 to 0.005) a query costs {costly.cost:.4f} instead of "
        f"{sum(POLICIES[8][3].values()):.4f}.",
        head=(
            "policy",
            *columns(run),
            "regret",
            "back, degraded",
            "back, restored",
            "models asked",
        ),
        rows=rows,
    )


def answers_to_perturbed(perturbed: Mapping[str, Mapping[str, float]]) -> result.Table:
    """How sure, and how right."""
    rows = [
        (
            name,
            f"{100 * each['right']:.1f}",
            f"{each['confidence']:.2f}",
            f"{100 * each['suspicious']:.1f}",
            f"{100 * each['given']:.1f}",
            f"{100 * each['right_of_given']:.1f}",
        )
        for name, each in perturbed.items()
    ]
    return result.Table(
        title="Perturbed images\n\n"
        f"The first {PERTURBED:,} test images, judged by the state that exp4 ended with. "
        f"Suspicious: the models support the answer by less than {SUSPICIOUS:g}, each counted "
        "by how often it is right. Given: the confidence is at least "
        f"{CONFIDENT:g}; the default output otherwise. The number of an adversarial row is "
        "the largest change of a pixel, of 255.",
        head=(
            "images",
            "right, %",
            "confidence",
            "suspicious, %",
            "given, %",
            "right of given, %",
        ),
        rows=rows,
    )


def concluded(found: dict[str, Any]) -> result.Result:
    """The tables, and whether the targets are met."""
    run: Run = found["run"]
    replays: dict[str, Replayed] = found["replays"]
    queries = len(run.labels)
    singles = {name: rates(wrong, run) for name, wrong in run.wrong.items()}
    best_name = min(singles, key=lambda name: singles[name][-1])
    best = singles[best_name][-1]
    back = {
        name: [back_after(each.wrong, run, phase) for phase in (1, 2)]
        for name, each in replays.items()
    }
    slowest = max((queries if each is None else each) for name in JUDGED for each in back[name])
    worst = max(float(replays[name].wrong.mean()) for name in ENSEMBLES)
    return result.Result(
        name="selection",
        question="Do selection policies find the best of five models, leave it when it breaks, come "
        f"back, and do ensembles beat it? {queries:,} queries on Fashion-MNIST, feedback {DELAY} "
        f"queries late; `resnet` answers {BROKEN_SHARE:.0%} of the queries from "
        f"{run.phases[1][1]:,} to {run.phases[1][2]:,} for another image. How the policies work: "
        "[selection](../../docs/selection.md).\n\n"
        "![Errors so far, less those of the best single model](selection.svg)",
        target=f"{' and '.join(ENSEMBLES)} make fewer errors than the best single model; "
        f"{', '.join(JUDGED)} are within {100 * MARGIN:g} percentage points of the best model "
        f"{MOST_BACK:,} queries after each change",
        verdict=f"best single model {best_name} {100 * best:.2f} % wrong, "
        + ", ".join(f"{name} {100 * replays[name].wrong.mean():.2f} %" for name in ENSEMBLES)
        + f"; the slowest was back after {slowest:,} queries",
        is_met=worst < best and slowest <= MOST_BACK,
        tables=(
            errors_of_models(run, singles),
            errors_of_policies(run, replays, back, best_name),
            answers_to_perturbed(found["perturbed"]),
        ),
        figures={
            "accuracy": found["accuracy"],
            "singles": singles,
            "policies": {
                name: {
                    "errors": rates(each.wrong, run),
                    "back": back[name],
                    "asked": each.asked,
                    "cost": each.cost,
                    "us_per_query": each.us,
                }
                for name, each in replays.items()
            },
            "perturbed": found["perturbed"],
        },
        packages=("numpy", "onnxruntime", "scikit-learn"),
    )


COLOURS = ("#888888", "#d55e00", "#e69f00", "#0072b2", "#009e73", "#cc79a7")


def figure(found: dict[str, Any], shown: Sequence[str]) -> str:
    """Errors so far less those of the best single model, one line a policy, as SVG."""
    run: Run = found["run"]
    queries = len(run.labels)
    best = min(run.wrong.values(), key=lambda wrong: wrong.mean())
    at = np.linspace(0, queries - 1, 401).astype(int)
    lines = {
        name: (np.cumsum(found["replays"][name].wrong) - np.cumsum(best))[at] for name in shown
    }
    low = min(float(line.min()) for line in lines.values())
    high = max(float(line.max()) for line in lines.values())
    left, top, width, height = 60, 20, 600, 320

    def x(query: float) -> float:
        return left + width * query / queries

    def y(value: float) -> float:
        return top + height * (high - value) / (high - low)

    _, begin, end = run.phases[1]
    parts = [
        (
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 820 390" '
            'font-family="sans-serif" font-size="12">'
        ),
        '<rect width="820" height="390" fill="white"/>',
        (
            f'<rect x="{x(begin):.1f}" y="{top}" width="{x(end) - x(begin):.1f}" height="{height}" '
            'fill="#f3f3f3"/>'
        ),
        (
            f'<text x="{x((begin + end) / 2):.1f}" y="{top + 14}" text-anchor="middle" '
            'fill="#666">resnet degraded</text>'
        ),
    ]
    step = 10 ** np.floor(np.log10(high - low))
    step = step / 2 if (high - low) / step < 3 else step
    parts += [
        f'<line x1="{left}" x2="{left + width}" y1="{y(value):.1f}" y2="{y(value):.1f}" '
        f'stroke="{"#444" if value == 0 else "#ddd"}"/>'
        f'<text x="{left - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:,.0f}</text>'
        for value in np.arange(np.ceil(low / step) * step, high, step)
    ]
    parts += [
        f'<text x="{x(query):.1f}" y="{top + height + 18}" text-anchor="middle">{query:,}</text>'
        for query in range(0, queries + 1, max(1, queries // 4))
    ]
    parts.append(
        f'<text x="{left + width / 2}" y="{top + height + 40}" text-anchor="middle">queries</text>'
    )
    parts.append(
        f'<text transform="translate(14 {top + height / 2}) rotate(-90)" text-anchor="middle">'
        "errors more than the best single model</text>"
    )
    ends = sorted(shown, key=lambda name: float(lines[name][-1]), reverse=True)
    label_y = -np.inf
    for name in ends:
        colour = COLOURS[shown.index(name) % len(COLOURS)]
        points = " ".join(
            f"{x(int(query)):.1f},{y(float(value)):.1f}"
            for query, value in zip(at, lines[name], strict=True)
        )
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.8"/>'
        )
        label_y = max(label_y + 15, y(float(lines[name][-1])) + 4)
        parts.append(
            f'<text x="{left + width + 8}" y="{label_y:.1f}" fill="{colour}">{html.escape(name)}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> int:
    """Replay all policies, and compare."""
    parser = argparse.ArgumentParser(description="Selection policies when the best model breaks.")
    parser.add_argument("--queries", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    result.add_options(parser)
    options = parser.parse_args()
    if not fashion_mnist.FOLDER.is_dir():
        print(
            "the data set is not there; on Debian: apt-get install dataset-fashion-mnist",
            file=sys.stderr,
        )
        return 2
    found = measure(options.queries, options.seed)
    if options.write:
        picture = result.RESULTS / "selection.svg"
        shown = ("exp3", "epsilon-greedy", "thompson", "exp4", "per-user")
        picture.write_text(figure(found, shown), encoding="utf-8")
    return result.conclude(concluded(found), options)


if __name__ == "__main__":
    sys.exit(main())
