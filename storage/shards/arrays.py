"""Type aliases for NumPy arrays by the width of their elements, which matters in files and compiled code. Shapes are in
the docstrings of functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Bool = npt.NDArray[np.bool_]
UInt8 = npt.NDArray[np.uint8]
UInt16 = npt.NDArray[np.uint16]
UInt32 = npt.NDArray[np.uint32]
UInt64 = npt.NDArray[np.uint64]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
AnyInt = npt.NDArray[np.integer]
AnyArray = npt.NDArray[Any]
