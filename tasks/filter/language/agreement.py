"""The rule that two identifications of a document's language must agree."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tasks.filter.rules import Tested, Turn


@dataclass(frozen=True)
class Agreement:
    """A document passes if the second opinion equals the first, or is missing. The ledger's value is the second's
    probability."""

    name: str
    threshold: float | None = None
    turn: Turn = Turn.USUAL

    def test(self, signals: pa.RecordBatch) -> Tested:
        """See `Rule`."""
        differs = pc.not_equal(signals["language"], signals["language_second"]).fill_null(False)
        values = pc.fill_null(signals["language_second_score"], 0.0).to_numpy(zero_copy_only=False)
        unknown = signals["language"].is_null().to_numpy(zero_copy_only=False)
        return Tested(differs.to_numpy(zero_copy_only=False), unknown, values)

    def details(self, signals: pa.RecordBatch) -> pa.Array:
        """The second opinion."""
        return signals["language_second"]
