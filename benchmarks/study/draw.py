"""Draws the study's figures from `data/`, and writes their page.

    python benchmarks/study/draw.py [--data DIR] [--out DIR]

One picture per figure in `results/study/`, and `results/study.md` with the numbers beside the
paper's claims. A figure without data is left out, and named. Measures nothing.
"""

from __future__ import annotations

import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import findings
from pictures import SECTIONS, Section
from records import DATA, Records, found
from result import RESULTS

HEAD = (
    "# The study's figures\n\n"
    "The figures of the design-space study that the tuner follows (tuning of a GAN, of OpenNMT and of "
    "a ResNet behind a model server), and those of the Clipper review (100,000 queries at 20 "
    "concurrent requests, closed loop), measured on this engine.\n"
    "Each section has the claim, what was found here, a picture, and the numbers.\n"
    "The models have the names and the tasks of the study's, and are much smaller, on small images and on number "
    "words (docs/models.md); the machine has two cores; guided is the sampler `gp`, not the study's GPy with "
    "expected improvement (`gpy` here), which has no figures on this page. So it is the claims that are tried "
    "here, not the study's numbers that are measured again.\n"
)
AGAIN = """## Run again

```
python benchmarks/study/measure.py --figure a --model resnet --spawner docker    # b likewise; gan, opennmt
python benchmarks/study/measure.py --figure c --model resnet --spawner docker    # and e
python benchmarks/study/measure.py --figure d --model resnet --spawner docker --seconds 1 --warmup 0.3 --rounds 6
python benchmarks/study/measure.py --figure batch --model reviews --spawner docker    # replicas, slo likewise
python benchmarks/study/draw.py
```

What is in `benchmarks/study/data` is not measured again. A model of which figure d lacks concurrencies was not
measured there yet: a search takes five to seven minutes; the command of d goes on with them.
"""


def data_of(figure: str, folder: pathlib.Path) -> list[Records]:
    """The data of a figure; of c and e only those with a search at 20."""
    kind, _ = SECTIONS[figure]
    every = found(kind, folder)
    if figure in {"c", "e"}:
        every = [one for one in every if 20 in findings.by_key(one.rows, "concurrency")]
    return every


def text_of(section: Section) -> str:
    """One section of the page."""
    sentences = "".join(f"- {sentence}\n" for sentence in section.found)
    return (
        f"## {section.title}\n\nClaim: {section.claim}.\n\n{sentences}\n"
        f"![{section.title}](study/{section.name}.svg)\n\n{section.table.text()}\n"
    )


def machines(every: list[Records]) -> str:
    """Where and when the data was measured, one line for each that differs."""
    told: dict[str, list[str]] = {}
    for one in every:
        facts = "; ".join(f"{name} {value}" for name, value in one.machine.items())
        told.setdefault(facts, []).append(one.path.stem)
    lines = "".join(f"- {facts} ({', '.join(names)})\n" for facts, names in told.items())
    return f"## Machine\n\n{lines}"


def main() -> int:
    """Draw what there is."""
    parser = argparse.ArgumentParser(description="Draw the study's figures.", allow_abbrev=False)
    parser.add_argument("--data", type=pathlib.Path, default=DATA, help="folder of the data")
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS, help="folder of the page")
    options = parser.parse_args()
    pictures = options.out / "study"
    pictures.mkdir(parents=True, exist_ok=True)
    texts, used, missing = [HEAD], [], []
    for figure, (_, section_of) in SECTIONS.items():
        data = data_of(figure, options.data)
        if not data:
            missing.append(figure)
            continue
        section = section_of(data)
        (pictures / f"{section.name}.svg").write_text(section.picture, encoding="utf-8")
        texts.append(text_of(section))
        used += [one for one in data if one.path not in {each.path for each in used}]
    if not used:
        print(f"draw.py: no data in {options.data}; run measure.py first", file=sys.stderr)
        return 2
    if missing:
        texts.append(f"Not measured yet: {', '.join(missing)}.\n")
    page = options.out / "study.md"
    page.write_text("\n".join([*texts, AGAIN, machines(used)]), encoding="utf-8")
    print(f"{page}: {len(texts) - 1 - bool(missing)} figures")
    return 0


if __name__ == "__main__":
    sys.exit(main())
