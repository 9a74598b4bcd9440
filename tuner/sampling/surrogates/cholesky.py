"""Cholesky factors and solutions straight from LAPACK, which for small matrices are mostly overhead in SciPy.

They are what `scipy.linalg` returns, to the bit. Matrices are float64 and finite.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import lapack

from tuner.sampling.arrays import Array


def factor(covariance: Array) -> Array:
    """Return the lower Cholesky factor (n, n).

    Raises:
        LinAlgError: the matrix is not positive definite.
    """
    found, failed = lapack.dpotrf(covariance, lower=1, clean=1)
    if failed:
        raise np.linalg.LinAlgError("the matrix is not positive definite")
    return np.asarray(found)


def solve(lower: Array, right: Array) -> Array:
    """Return x of L L^T x = right for a factor (n, n) and a vector (n,) or matrix (n, m)."""
    found, _ = lapack.dpotrs(lower, right, lower=1)
    return np.asarray(found)


def inverse(lower: Array) -> Array:
    """Return the inverse (n, n) of L L^T."""
    return solve(lower, np.eye(len(lower)))
