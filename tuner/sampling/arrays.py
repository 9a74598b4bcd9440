"""Types of arrays; their shapes are beside each."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Positions = NDArray[np.intp]
