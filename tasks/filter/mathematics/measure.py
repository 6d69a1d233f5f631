"""The number of formulas in each text, and the share of its characters that they take."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tasks.filter.mathematics.config import MathematicsConfig
from tasks.filter.mathematics.find import formulas

SCHEMA = pa.schema([("mathematics_formulas", pa.int64()), ("mathematics_share", pa.float64())])


def measure_mathematics(config: MathematicsConfig, texts: pa.Array) -> pa.RecordBatch:
    """The signals of D texts; see `stage.py` for the columns."""
    counts, shares = [0] * len(texts), [0.0] * len(texts)
    marked = pc.match_substring_regex(texts, r"\$|\\\(|\\\[|\\begin\{")
    for row, is_marked in enumerate(marked.to_pylist()):
        if is_marked:
            text: str = texts[row].as_py()
            found = list(formulas(text, config.environments, config.longest_inline))
            counts[row] = len(found)
            shares[row] = sum(end - begin for begin, end in found) / len(text)
    return pa.record_batch([pa.array(counts, pa.int64()), pa.array(shares, pa.float64())], SCHEMA)
