"""Mathematics as signals: the number of LaTeX formulas in each text, and the share of its characters that they take."""

from __future__ import annotations

import functools

import pyarrow as pa
import pyarrow.compute as pc

from storage.artifact import Artifact
from tasks.filter.form.latex import MathematicsConfig, formulas
from tasks.filter.side_files import write_signals
from tasks.stage import stage
from tasks.stage.output import Output

SCHEMA = pa.schema([("mathematics_formulas", pa.int64()), ("mathematics_share", pa.float64())])


@stage(version=2, name="mathematics", part_of="filter", runtime=("data",))
def mathematics_signals(config: MathematicsConfig, documents: Artifact, out: Output) -> None:
    """Find LaTeX formulas. Columns: `mathematics_formulas`, their number, and `mathematics_share`, the share of the
    text's characters that they take, marks included."""
    write_signals(functools.partial(measure_mathematics, config), documents, out)


def measure_mathematics(config: MathematicsConfig, texts: pa.Array) -> pa.RecordBatch:
    """The signals of D texts. For the columns see `mathematics_signals`."""
    counts, shares = [0] * len(texts), [0.0] * len(texts)
    marked = pc.match_substring_regex(texts, r"\$|\\\(|\\\[|\\begin\{")
    for row, is_marked in enumerate(marked.to_pylist()):
        if is_marked:
            text: str = texts[row].as_py()
            spans = list(formulas(text, config.environments, config.longest_inline))
            counts[row] = len(spans)
            shares[row] = sum(end - begin for begin, end in spans) / len(text)
    return pa.record_batch([pa.array(counts, pa.int64()), pa.array(shares, pa.float64())], SCHEMA)
