"""Cholesky factors and solutions straight from LAPACK, which for small matrices are mostly overhead in SciPy.

Matrices are float64 and finite.
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
    half = _half_inverse(lower)
    return half + np.tril(half, -1).T


def inverse_diagonal(lower: Array) -> Array:
    """Return the diagonal (n,) of the inverse of L L^T."""
    return np.diag(_half_inverse(lower))


def _half_inverse(lower: Array) -> Array:
    found, _ = lapack.dpotri(lower, lower=1)
    return np.asarray(found)
