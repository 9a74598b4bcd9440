"""A comparison of our server with its peers: sweep, then alternating rounds, then tables.

1. Every candidate is measured once, as many settings of each server as of any other; of each the best two
   are measured again, and the sum of both decides.
2. We and every peer that came within 30 % of the best one are measured in alternating rounds on fresh
   starts; who goes first changes from round to round. A round's ratio is ours over the best peer's of
   the same round; what it shows is said by the 95 % interval over the rounds (`ratio.py`).
3. The other peers are measured twice more, each alone.

In: candidates. Out: loads by name, and the tables of them. What the target is, the script says.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Mapping, Sequence

import candidates
import ratio
import result
import server_process
import wrk
from candidates import Candidate, Workload

PEERS_FOLDER = pathlib.Path(__file__).resolve().parent / ".peers"
NEAR = 0.7
"""Share of the best peer's rate from which another peer takes part in the rounds."""
NO_TENSORFLOW_SERVING = (
    "TensorFlow Serving is not compared: neither PyPI nor Debian has a server of it to install."
)

Round = dict[str, wrk.Load]
"""Server's name -> what it did in this round."""

_BEGUN_S = time.monotonic()


@dataclasses.dataclass(frozen=True, slots=True)
class Tried:
    """A candidate with its runs in the sweep; none where it failed, with what it said."""

    candidate: Candidate
    loads: list[wrk.Load]
    problem: str = ""

    @property
    def requests_per_s(self) -> float:
        """Mean of the runs; 0 without any."""
        return statistics.mean(load.requests_per_s for load in self.loads) if self.loads else 0.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of every comparison."""
    parser.add_argument(
        "--peers",
        metavar="NAME[,NAME]",
        type=lambda text: text.split(","),
        help=f"these only, and the target then means these (default: all, {', '.join(candidates.PEERS)})",
    )
    parser.add_argument(
        "--peers-dir",
        type=pathlib.Path,
        default=os.environ.get("LUTHIER_PEERS", PEERS_FOLDER),
        help="their virtual environments (default: LUTHIER_PEERS, or benchmarks/.peers)",
    )
    parser.add_argument("--starts", type=int, default=4, help="fresh starts (default 4)")
    parser.add_argument("--rounds", type=int, default=4, help="rounds per start (default 4)")
    parser.add_argument("--seconds", type=int, default=3, help="length of a run (default 3)")
    parser.add_argument("--sweep-seconds", type=int, default=2, help="per setting (default 2)")
    parser.add_argument(
        "--quick", action="store_true", help="two settings each, one short round: does it all work?"
    )
    result.add_options(parser)


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The options, checked; ends the program with one line when something is missing."""
    options = parser.parse_args()
    if problem := wrk.is_missing():
        parser.error(problem)
    unknown = set(options.peers or ()) - set(candidates.PEERS)
    if unknown:
        parser.error(
            f"unknown peers {', '.join(sorted(unknown))}; of {', '.join(candidates.PEERS)}"
        )
    if options.quick and options.write:
        parser.error("a quick run is no result: leave out --write or --quick")
    if options.quick:
        options.starts = options.rounds = options.seconds = options.sweep_seconds = 1
    options.peers_dir = pathlib.Path(options.peers_dir).absolute()
    return options


def say(text: str) -> None:
    """Progress, with the seconds since the start."""
    print(f"{time.monotonic() - _BEGUN_S:5.0f} s  {text}", file=sys.stderr, flush=True)


def ours(
    workload: Workload,
    options: argparse.Namespace,
    *,
    name: str = candidates.PLAIN,
    tree: pathlib.Path = server_process.ROOT,
) -> list[Tried]:
    """The sweep of our server, or of that of another tree under another name; best first."""
    settings = candidates.OURS[workload.name][: 2 if options.quick else None]
    tries = [candidates.luthier(workload, each, name=name, tree=tree) for each in settings]
    return sweep(tries, options)


def peers(workload: Workload, options: argparse.Namespace) -> dict[str, list[Tried]]:
    """The sweep of each peer that is asked for and installed, best first."""
    found = {}
    for name in options.peers or candidates.PEERS:
        if candidates.version(name, options.peers_dir) is None:
            say(f"{name} is not installed: python benchmarks/peers/install.py {name}")
            continue
        settings = candidates.PEERS[name].sweeps[workload.name][: 2 if options.quick else None]
        folder = options.peers_dir
        swept = sweep([candidates.peer(workload, name, each, folder) for each in settings], options)
        found[name] = swept
    return found


def sweep(tries: Sequence[Candidate], options: argparse.Namespace) -> list[Tried]:
    """Every candidate once and the best two again; best first."""
    first = [_tried(candidate, options.sweep_seconds) for candidate in tries]
    first.sort(key=lambda tried: -tried.requests_per_s)
    again = 0 if options.quick else 2
    for tried in first[:again]:
        tried.loads.extend(_tried(tried.candidate, options.sweep_seconds).loads)
    return sorted(first, key=lambda tried: -tried.requests_per_s)


def _tried(candidate: Candidate, seconds: int) -> Tried:
    try:
        with candidate.open() as measure:
            tried = Tried(candidate, [measure(seconds)])
    except (server_process.ServerFailed, wrk.WrongAnswers) as error:
        tried = Tried(candidate, [], str(error))
    rate = f"{tried.requests_per_s:,.0f} /s" if tried.loads else f"failed: {tried.problem}"
    say(f"{candidate.name} {candidate.setting}: {rate}")
    return tried


def near(swept: dict[str, list[Tried]]) -> list[Candidate]:
    """The peers that take part in the rounds: those whose best is near the best peer's."""
    best = {name: tries[0] for name, tries in swept.items() if tries and tries[0].loads}
    most = max((tried.requests_per_s for tried in best.values()), default=0)
    return [t.candidate for t in best.values() if t.requests_per_s >= NEAR * most]


def alternate(
    contenders: Sequence[Candidate],
    options: argparse.Namespace,
    *,
    starts: int | None = None,
    sent: candidates.Sent = candidates.Sent.ALIKE,
) -> list[Round]:
    """Rounds of all contenders on fresh starts."""
    rounds: list[Round] = []
    for start in range(options.starts if starts is None else starts):
        with contextlib.ExitStack() as stack:
            measures = [(each.name, stack.enter_context(each.open())) for each in contenders]
            for turn in range(options.rounds):
                shift = (start + turn) % len(measures)
                order = measures[shift:] + measures[:shift]
                rounds.append(
                    {name: measure(options.seconds, sent=sent) for name, measure in order}
                )
                rates = (f"{c.name} {rounds[-1][c.name].requests_per_s:,.0f}" for c in contenders)
                say(f"start {start + 1}, round {turn + 1}: {', '.join(rates)} /s")
    return rounds


def others(
    swept: dict[str, list[Tried]], rounds: Sequence[Round], options: argparse.Namespace
) -> dict[str, list[wrk.Load]]:
    """The best setting of each peer that was not in the rounds, twice more."""
    found = {}
    for name, tries in swept.items():
        if name not in rounds[0] and tries and tries[0].loads:
            with tries[0].candidate.open() as measure:
                found[name] = [measure(options.seconds) for _ in range(2)]
    return found


def ratio_to(name: str, rounds: Sequence[Round], ours: str = "luthier") -> ratio.Ratio:
    """Ours over another contender's of the same rounds."""
    return ratio.paired(
        [each[ours].requests_per_s for each in rounds],
        [each[name].requests_per_s for each in rounds],
    )


def ratio_to_peers(
    rounds: Sequence[Round], rest: dict[str, list[wrk.Load]], ours: str = "luthier"
) -> ratio.Ratio:
    """Ours over the best peer's of the same round; the peers outside of the rounds by their medians."""
    steady = [statistics.median(load.requests_per_s for load in loads) for loads in rest.values()]
    best = [
        max(*(each[name].requests_per_s for name in each if name in candidates.PEERS), *steady, 1)
        for each in rounds
    ]
    return ratio.paired([each[ours].requests_per_s for each in rounds], best)


def missing(swept: dict[str, list[Tried]], options: argparse.Namespace) -> list[str]:
    """Peers that are asked for and have no figure."""
    asked = options.peers or candidates.PEERS
    return [name for name in asked if not swept.get(name) or not swept[name][0].loads]


def notes(swept: dict[str, list[Tried]], options: argparse.Namespace) -> tuple[str, ...]:
    """What the page must say of the peers."""
    found = [NO_TENSORFLOW_SERVING]
    if options.peers:
        found.append(f"Only these peers were asked for: {', '.join(options.peers)}.")
    if absent := missing(swept, options):
        found.append(f"Missing, so the target cannot be met: {', '.join(absent)}.")
    return tuple(found)


def versions(swept: dict[str, list[Tried]], options: argparse.Namespace) -> tuple[str, ...]:
    """Versions of the peers that were measured."""
    return tuple(filter(None, (candidates.version(name, options.peers_dir) for name in swept)))


def best_settings(*swept: Mapping[str, Sequence[Tried]]) -> dict[str, str]:
    """Server -> the setting that was best in its sweep."""
    return {
        name: tries[0].candidate.setting for each in swept for name, tries in each.items() if tries
    }


def medians(
    settings: dict[str, str], rounds: Sequence[Round], rest: dict[str, list[wrk.Load]]
) -> result.Table:
    """Every server at its best, best first."""
    loads = {name: [each[name] for each in rounds] for name in rounds[0]} | rest
    rows = []
    for name, runs in loads.items():
        rate = statistics.median(load.requests_per_s for load in runs)
        rows.append((rate, (
            name, settings[name], f"{rate:,.0f}",
            f"{statistics.median(load.p50_ms for load in runs):.2f}",
            f"{statistics.median(load.p99_ms for load in runs):.2f}", str(len(runs)),
        )))  # fmt: skip
    rows.sort(key=lambda pair: -pair[0])
    return result.Table(
        title="Each at its best: medians of the runs",
        head=("server", "best setting", "requests/s", "p50 ms", "p99 ms", "runs"),
        rows=[row for _, row in rows],
    )


def rounds_table(
    rounds: Sequence[Round], more: Sequence[tuple[str, Sequence[float]]]
) -> result.Table:
    """The rounds, with further columns of ratios."""
    names = sorted(rounds[0], key=lambda name: name not in candidates.FORMS)
    rows = [
        (
            str(number + 1),
            *(f"{each[name].requests_per_s:,.0f}" for name in names),
            *(f"{column[number]:.3f}" for _, column in more),
        )
        for number, each in enumerate(rounds)
    ]
    head = ("round", *(f"{name} /s" for name in names), *(title for title, _ in more))
    return result.Table(title="Rounds", head=head, rows=rows)


def sweep_table(tries: Sequence[Tried]) -> result.Table:
    """Every setting that was tried."""
    rows = [
        (
            tried.candidate.name,
            tried.candidate.setting,
            f"{tried.requests_per_s:,.0f}" if tried.loads else "failed",
            f"{statistics.mean(load.p50_ms for load in tried.loads):.2f}" if tried.loads else "",
            str(len(tried.loads)),
        )
        for tried in tries
    ]
    return result.Table(
        title="Sweep of settings, short runs; the best two of each server run twice",
        head=("server", "setting", "requests/s", "p50 ms", "runs"),
        rows=rows,
    )


def rounds_figures(rounds: Sequence[Round]) -> list[dict[str, object]]:
    """Rounds, for `--json`."""
    return [{name: dataclasses.asdict(load) for name, load in each.items()} for each in rounds]


def figures(
    tries: Sequence[Tried], rounds: Sequence[Round], rest: dict[str, list[wrk.Load]]
) -> dict[str, object]:
    """Everything measured, for `--json`."""
    return {
        "sweep": [
            [
                t.candidate.name,
                t.candidate.setting,
                [dataclasses.asdict(i) for i in t.loads],
                t.problem,
            ]
            for t in tries
        ],
        "rounds": rounds_figures(rounds),
        "others": {
            name: [dataclasses.asdict(load) for load in runs] for name, runs in rest.items()
        },
    }
