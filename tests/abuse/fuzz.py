"""A fuzzer of one target, in a process of its own: atheris where it is installed, else mutations without guidance.

    python -m tests.abuse.fuzz TARGET CORPUS SECONDS SEED

Prints one JSON line: runs, the engine, and the failing input in hexadecimal digits with what was wrong. The
corpus is a folder; what the guided fuzzer finds of interest stays there.
"""

from __future__ import annotations

import json
import pathlib
import random
import sys
import time

SLOWEST_S = 0.1
"""Of one input of at most `LONGEST_BYTES`."""
LONGEST_BYTES = 4096

_state = {"runs": 0}


def _wrong(target: str, data: bytes) -> str | None:
    from tests.abuse import targets  # noqa: PLC0415 - atheris must be there first

    _state["runs"] += 1
    began_s = time.thread_time()
    told = targets.escaped(target, data)
    if told is None and time.thread_time() - began_s > SLOWEST_S:
        took_s = targets.cost(target, data)
        if took_s > SLOWEST_S:
            told = f"{len(data)} bytes took {took_s * 1e3:.0f} ms"
    return told


def _say(engine: str, data: bytes = b"", wrong: str | None = None) -> None:
    line = {"runs": _state["runs"], "engine": engine, "data": data.hex(), "wrong": wrong}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def mutated(rng: random.Random, pool: list[bytes]) -> bytes:
    """An input near those of the pool."""
    data = bytearray(rng.choice(pool))
    for _ in range(rng.randrange(1, 6)):
        place = rng.randrange(len(data) + 1)
        match rng.randrange(6):
            case 0 if data:
                data[place % len(data)] ^= 1 << rng.randrange(8)
            case 1:
                data[place:place] = rng.randbytes(rng.randrange(1, 9))
            case 2:
                del data[place : place + rng.randrange(1, 9)]
            case 3:
                other = rng.choice(pool)
                start = rng.randrange(len(other) + 1)
                data[place:place] = other[start : start + rng.randrange(1, 64)]
            case 4 if data:
                data[place % len(data)] = rng.choice((0, 1, 9, 10, 13, 34, 127, 128, 255))
            case _:
                data[place:place] = data[
                    max(0, place - rng.randrange(1, 20)) : place
                ] * rng.randrange(1, 8)
    return bytes(data[:LONGEST_BYTES])


def _unguided(target: str, corpus: pathlib.Path, seconds: float, seed: int) -> None:
    _wrong(target, b"")  # what is imported first takes its time
    rng = random.Random(seed)
    pool = [path.read_bytes() for path in sorted(corpus.iterdir())] or [b""]
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        data = mutated(rng, pool)
        told = _wrong(target, data)
        if told is not None:
            _say("mutations", data, told)
            return
    _say("mutations")


def _guided(target: str, corpus: pathlib.Path, seconds: float, seed: int) -> None:
    import atheris  # noqa: PLC0415 - only the campaign has it

    with atheris.instrument_imports(include=["serving"]):
        from tests.abuse import targets  # noqa: F401, PLC0415 - instrumented as it is imported

    def one(data: bytes) -> None:
        told = _wrong(target, data)
        if told is not None:
            _say("atheris", data, told)
            raise RuntimeError(told)
        if _state["runs"] % 1000 == 0:
            _say("atheris")

    words = [
        sys.argv[0], str(corpus), f"-max_total_time={seconds:.0f}", f"-seed={seed & 0x7FFFFFFF}", "-timeout=10",
        f"-max_len={LONGEST_BYTES}", "-rss_limit_mb=1024", f"-artifact_prefix={corpus.parent}/", "-verbosity=0",
    ]  # fmt: skip
    atheris.Setup(words, one)
    atheris.Fuzz()


def main() -> None:
    """Fuzz."""
    target, folder, seconds, seed = sys.argv[1:]
    corpus = pathlib.Path(folder)
    try:
        import atheris  # noqa: F401, PLC0415
    except ImportError:
        _unguided(target, corpus, float(seconds), int(seed))
    else:
        _guided(target, corpus, float(seconds), int(seed))


if __name__ == "__main__":
    main()
