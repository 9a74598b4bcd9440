"""Array types; comments next to arrays give their shapes."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Positions = NDArray[np.intp]
