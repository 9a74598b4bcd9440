"""Where training scripts put what they make: the model into the package, the record of its training beside the script.

In: a script's options. Out: their values, with two folders more. A model that is only tried goes elsewhere, and its
record with it, so that the record here is always that of the model that is shipped.
"""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Sequence

from serving.zoo import bundled

FOLDER = pathlib.Path(__file__).resolve().parent


def parsed(
    parser: argparse.ArgumentParser, name: str, arguments: Sequence[str] | None = None
) -> argparse.Namespace:
    """The command line of a script.

    Args:
        parser: with its own options.
        name: of the bundled model.
        arguments: instead of those of this process.

    Returns:
        Their values, with the folders `out`, for the model and its sample, and `record`.
    """
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        help=f"folder for all that is written, instead of serving/zoo/{name} and, for the record, zoo/{name}",
    )
    options = parser.parse_args(arguments)
    options.record = options.out or FOLDER / name
    options.out = options.out or bundled.FOLDER / name
    return options
