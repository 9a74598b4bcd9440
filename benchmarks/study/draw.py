"""Draws the study from `data/`, and writes its page.

    python benchmarks/study/draw.py [--data DIR] [--out DIR]

Pictures in `results/study/`, and `results/study.md`: what was claimed, what was found and how sure,
then a section for each question. A section without data is left out, and named. Measures nothing.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Callable, Sequence

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import launch_sections
import records
import replay_sections
import search_sections
from records import Row
from result import RESULTS, Table
from sections import Section

HEAD = (
    "# The study again\n\n"
    "The design-space study that the tuner follows (random search and Bayesian optimisation for a GAN, OpenNMT and "
    "a ResNet behind a model server), and the Clipper review's figures, measured on this engine.\n"
    "All searches of a unit take turns trial by trial, and their winners are measured side by side: random with 50 "
    "trials, GPy with expected improvement after 25 random ones (the study's method), epsilon-greedy, and "
    "`structured`, the default of `tune`. As in every study, some trials are second evaluations of the best and of the "
    "default{repeats}.\n"
    "The models have the names and the tasks of the study's and are much smaller; the machine has two cores. So its "
    "claims are tried here, not its numbers measured again.\n"
)
NOT_HERE = """## Not measured here

| item | reason |
| --- | --- |
| TensorFlow Serving; Keras beside TensorFlow | no server installs from a package; no model is a SavedModel |
| GPU clock, GPU memory, containers with a GPU | the machine has no GPU |
| 18 cores, 36 threads | the machine has two cores |
| static batches padded to their full size | the engine pads no batch to a size; batches that wait are shown |
| users that differ, stragglers, cost of asking five models under load | need a workload of their own |
| Azure's function traces, Ott's reviews, SVHN, WMT | the data is not here |
| a measured front of latency and cost | no source has figures to compare; `tune --objective mean,cost` measures one |
| what one more core buys | in part by the replicas under a quota above; memory buys nothing once a model fits |
| seconds until selection recovers from a change | [told in queries](selection.md); served, it needs a workload |
| what a cache gains | needs requests with a known popularity |
| several machines, Pareto sets of components | not built |

"""
AGAIN = """## Run again

```
python benchmarks/study/measure.py --minutes 60    # until `--list` shows no unit that waits
python benchmarks/study/draw.py
```

What is in `benchmarks/study/data` is not measured again.

"""

SECTIONS: Sequence[tuple[str, Callable[[Sequence[Row]], Section]]] = (
    ("search", search_sections.gains),
    ("search", search_sections.consistency),
    ("search", search_sections.winners),
    ("search", search_sections.progress),
    ("sample", launch_sections.sample),
    ("repeated", search_sections.repeated),
    ("replay", replay_sections.replays),
    ("clusters", launch_sections.clusters),
    ("growth", launch_sections.growth),
    ("variants", launch_sections.variants),
    (
        "batch",
        launch_sections.review_section(
            "review_batch",
            "batching.max_size",
            "batch size, items",
            "Throughput and total time by the size of a batch",
            "larger batches raise the throughput, and those that are not filled lower it again",
            is_log=True,
        ),
    ),
    (
        "replicas",
        launch_sections.review_section(
            "review_replicas",
            "replica.count",
            "replicas",
            "Throughput and total time by the number of replicas",
            "the throughput grows with the replicas, as far as there are cores for them",
            is_log=False,
        ),
    ),
    (
        "slo",
        launch_sections.review_section(
            "review_objective",
            "batching.slo_ms",
            "latency objective, ms",
            "Throughput by the latency objective",
            "a looser objective lets adaptive batching make larger batches, and the throughput rises",
            is_log=True,
        ),
    ),
)
"""Kind of data, and what makes a section of it."""


def first_table(sections: Sequence[Section]) -> str:
    """Return claims, findings and certainty, one row a section."""
    return Table(
        title="## In short",
        head=("claim", "found", "how sure"),
        rows=[(one.claim, one.short, one.sure) for one in sections],
        left=3,
    ).text()


def text_of(section: Section) -> str:
    """Return one section of the page."""
    sentences = "".join(f"- {sentence}\n" for sentence in section.found)
    sentences += "\n" * bool(sentences)
    picture = f"![{section.title}](study/{section.name}.svg)\n\n" if section.picture else ""
    tables = "\n\n".join(table.text() for table in section.tables)
    return (
        f"## {section.title}\n\nClaim: {section.claim}.\n\nFound: {section.short} ({section.sure}).\n\n"
        f"{sentences}{picture}{tables}\n"
    )


def _repeats(searches: Sequence[Row]) -> str:
    """Return how many trials of the second halves of the random searches are repeats."""
    counts = []
    for row in searches:
        tried = [str(one) for one in row["searches"]["random"]["configurations"]]
        half = len(tried) // 2
        counts.append(sum(one in tried[:place] for place, one in enumerate(tried) if place >= half))
    if not counts:
        return ""
    return f" ({min(counts)} to {max(counts)} of the second half of a random search)"


def machines(rows: Sequence[Row]) -> str:
    """Return where and when the data was measured, and how long it took."""
    told: dict[str, float] = {}
    for row in rows:
        facts = "; ".join(f"{name} {value}" for name, value in row["machine"].items())
        told[facts] = told.get(facts, 0.0) + row["minutes"]
    lines = "".join(f"- {facts} ({minutes:.0f} minutes)\n" for facts, minutes in told.items())
    return f"## Machine\n\n{lines}"


def main() -> int:
    """Draw what there is."""
    parser = argparse.ArgumentParser(description="Draw the study.", allow_abbrev=False)
    parser.add_argument(
        "--data", type=pathlib.Path, default=records.DATA, help="folder of the data"
    )
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS, help="folder of the page")
    options = parser.parse_args()
    pictures = options.out / "study"
    pictures.mkdir(parents=True, exist_ok=True)
    data = {kind: records.read(kind, options.data) for kind, _ in SECTIONS}
    sections = [section_of(data[kind]) for kind, section_of in SECTIONS if data[kind]]
    if not sections:
        print(f"draw.py: no data in {options.data}; run measure.py first", file=sys.stderr)
        return 2
    for section in sections:
        if section.picture is not None:
            path = pictures / f"{section.name}.svg"
            path.write_text(section.picture, encoding="utf-8")
    missing = ", ".join(sorted(kind for kind, rows in data.items() if not rows))
    texts = [
        HEAD.format(repeats=_repeats(data["search"])),
        first_table(sections) + "\n",
        *map(text_of, sections),
    ]
    texts += [f"Not measured yet: {missing}.\n"] if missing else []
    rows = [row for kind in data.values() for row in kind]
    page = options.out / "study.md"
    page.write_text("\n".join([*texts, NOT_HERE + AGAIN + machines(rows)]), encoding="utf-8")
    print(f"{page}: {len(sections)} sections")
    return 0


if __name__ == "__main__":
    sys.exit(main())
