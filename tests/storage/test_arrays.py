"""What libraries do slowly: the same values, without their detours."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from storage.shards.arrays import AnyArray, as_arrow, as_numpy, distinct, find

TO_ARROW_AND_BACK = """
import sys
import numpy as np, pyarrow as pa
from storage.shards.arrays import as_arrow, as_numpy
table = pa.table({"numbers": as_arrow(np.arange(3)), "texts": as_arrow(["a", "b", "c"])})
assert as_numpy(table["numbers"]).sum() == 3
assert "pandas" not in sys.modules
"""


@pytest.mark.parametrize(
    "values",
    [
        np.arange(0),
        np.arange(5)[::2],
        np.array([0.5, np.nan]),
        np.array([1, 2**32 - 1], np.uint32),
        np.arange(19) % 3 == 0,
        np.zeros(0, np.bool_),
    ],
)
def test_columns_have_the_values_of_arrays_and_arrays_those_of_columns(values: AnyArray) -> None:
    column = as_arrow(values)
    assert column.equals(pa.array(values)) or np.isnan(values).any()
    table = pa.table({"values": pa.chunked_array([column, column[1:]], column.type)})
    for rows in (table, table[1:]):
        found, expected = as_numpy(rows["values"]), np.append(values, values[1:])[len(table) - len(rows) :]
        assert found.dtype == values.dtype
        np.testing.assert_array_equal(found, expected)


def test_a_column_of_texts_has_them() -> None:
    for texts in ([], ["ä", "", "x\0y", "\U0001f600"]):
        assert as_arrow(texts).equals(pa.array(texts, pa.string()))


def test_neither_way_imports_pandas() -> None:
    subprocess.run([sys.executable, "-c", TO_ARROW_AND_BACK], check=True)


def test_distinct_values_ascend_and_are_found() -> None:
    values = np.random.default_rng(0).integers(-9, 9, 100)
    known = distinct(values.reshape(50, 2))
    assert known.tolist() == sorted(set(values.tolist()))
    asked = np.arange(-20, 20)
    place, there = find(asked, known)
    assert there.tolist() == [value in known for value in asked.tolist()]
    assert known[place[there]].tolist() == asked[there].tolist()
    assert not distinct(known[:0]).size
    assert not find(asked, known[:0])[1].any()
