"""The bundled `linear` model as plain numbers, for the containers in other languages:

    python examples/linear_weights.py examples/container_cpp/weights.bin

In: `serving/zoo/linear/model.npz`. Out: FP32, little-endian: 10 rows of 3072 weights, then 10 offsets.
"""

from __future__ import annotations

import pathlib
import sys

import numpy as np

from serving import zoo


def main() -> None:
    """Write the file that the command line names."""
    source = zoo.find("linear").path
    assert source is not None
    target = pathlib.Path(sys.argv[1])
    with np.load(source) as arrays:
        numbers = np.concatenate([arrays["coef"].ravel(), arrays["intercept"]])
    target.write_bytes(numbers.astype("<f4").tobytes())
    print(f"{target}: {len(numbers)} numbers")


if __name__ == "__main__":
    main()
