"""Type aliases for NumPy arrays by the width of their elements, which matters in files and compiled code (shapes are in
the docstrings of functions), and what libraries do slowly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pyarrow as pa

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


def distinct(values: Int64) -> Int64:
    """The values without repetitions, ascending. `np.unique` puts them into a hash table, which takes twenty times as
    long for a million."""
    ordered = np.sort(values, axis=None)
    first = np.ones(len(ordered), np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    return ordered[first]


def find(values: Int64, known: Int64) -> tuple[Int64, Bool]:
    """For each value its index in the ascending `known`, and whether it is there at all."""
    place = np.searchsorted(known, values)
    there = place < len(known)
    there[there] = known[place[there]] == values[there]
    return place, there


def as_arrow(values: AnyArray | list[str]) -> pa.Array:
    """A column without nulls. `pa.array` would import pandas, in 0.2 s, to ask whether the values are its own."""
    import pyarrow as pa

    if isinstance(values, list):
        texts = [value.encode() for value in values]
        ends = np.cumsum([0, *map(len, texts)], dtype=np.int32)
        return pa.StringArray.from_buffers(len(values), pa.py_buffer(ends), pa.py_buffer(b"".join(texts)))
    kind = pa.from_numpy_dtype(values.dtype)
    data = np.packbits(values, bitorder="little") if values.dtype == np.bool_ else np.ascontiguousarray(values)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(data)])


def as_numpy(column: pa.ChunkedArray) -> AnyArray:
    """The values of a column of a table without nulls. Its own `to_numpy` would import pandas too."""
    array = column.combine_chunks()
    data, mine = array.buffers()[1] or b"", slice(array.offset, array.offset + len(array))
    if array.type == "bool":
        return np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")[mine].view(np.bool_)
    return np.frombuffer(data, array.type.to_pandas_dtype())[mine]
