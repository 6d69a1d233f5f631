"""What the stage `reward` says of the judge that it trained."""

from __future__ import annotations

from typing import Any

from tasks.stage.output import Output


def report_judge(measured: dict[str, Any], out: Output) -> None:
    """The counts of the manifest and the table "Calibration"."""
    rows = measured.pop("calibration", [])
    out.count(**measured)
    if not rows:
        return  # nothing was held out
    out.table(
        "Calibration",
        [
            {
                "probability": f"{row['low']:.1f} to {row['high']:.1f}",
                "pairs": row["pairs"],
                "predicted": f"{row['predicted']:.3f}",
                "observed": f"{row['observed']:.3f}",
            }
            for row in rows
        ],
    )
