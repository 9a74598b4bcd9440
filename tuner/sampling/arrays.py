"""Array types; a comment next to each array gives its shape."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Positions = NDArray[np.intp]
