"""How training changed the loss on held-out rows: validations before the first step and after the last, row by row.

Both measure the same rows, so the change is paired: how easy or hard a row is cancels out, and only the spread of the
rows' changes is left to chance. The loss is a mean over tokens, and rows have different numbers of tokens, so the
change is a ratio of two sums. Its interval is that of the ratio estimator (Cochran 1977, §6.4) with Student's t.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.files.flush import flush

Rows = Sequence[Sequence[float]]  # for each, the sum of its loss and the number of its tokens
CONFIDENCE = 0.95


@dataclass(frozen=True)
class HeldOutChange:
    """The first and the last validation, kept on disk: a resumed training doesn't measure the first one again."""

    folder: Path

    def keep(self, step: int, measures: dict[str, float], rows: Rows | None) -> None:
        """Write a validation to disk. To be called before a checkpoint of its step is marked as whole."""
        path = self._path(0 if step == 0 else 1)
        path.write_text(json.dumps({"measures": measures, "rows": rows}))
        flush(path)

    def result(self) -> dict[str, Any] | None:
        """The measures before the first step, and the change of the loss from then to the last step if the method gives
        the losses of rows. None if nothing is held out."""
        if not self._path(0).exists():
            return None
        before, after = (json.loads(self._path(number).read_text()) for number in (0, 1))
        change = paired_change(before["rows"], after["rows"]) if before["rows"] and after["rows"] else {}
        return {"before": before["measures"], "change": change}

    def _path(self, number: int) -> Path:
        return self.folder / ("validated-last.json" if number else "validated-first.json")


def paired_change(before: Rows, after: Rows) -> dict[str, float]:
    """The change of the mean loss per token, and its 95 % interval over rows if there are several."""
    from scipy.stats import t

    tokens = [count for _, count in before]
    differences = [late - early for (early, _), (late, _) in zip(before, after, strict=True)]
    change, rows = sum(differences) / sum(tokens), len(tokens)
    measures = {"validation_loss_change": change}
    if rows > 1:
        spread = sum((one - change * count) ** 2 for one, count in zip(differences, tokens, strict=True))
        half = t.ppf((1 + CONFIDENCE) / 2, rows - 1) * math.sqrt(rows / (rows - 1) * spread) / sum(tokens)
        measures |= {"validation_loss_change_low": change - half, "validation_loss_change_high": change + half}
    return {name: round(float(value), 6) for name, value in measures.items()}
