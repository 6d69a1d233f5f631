"""A fitted law as a file, with all its draws, so that a plan predicts from it without fitting again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from storage.artifact import Artifact
from storage.errors import DamagedArtifact, make_again
from storage.shards.lines import parse_json
from tasks.ablate.laws.law import Fitted, Law, Point

LAW = "law.json"


def write_law(fitted: Fitted, path: Path, **besides: Any) -> None:
    """Write a law, and what was found with it."""
    content = {
        "law": {name: float(value) for name, value in fitted.law._asdict().items()},
        "axes": fitted.axes,
        "noise": fitted.noise,
        "freedom": fitted.freedom,
        "points": [point._asdict() for point in fitted.points],
        **besides,
        "draws": {name: _short(values) for name, values in fitted.draws._asdict().items()},
        "noises": _short(fitted.noises),
    }
    path.write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")


def read_law(scaling: Artifact) -> Fitted:
    """The law of a ladder's artifact. Raises DamagedArtifact."""
    try:
        content = parse_json(scaling.file(LAW).read_bytes())
        return Fitted(
            Law(**content["law"]),
            tuple(Point(**point) for point in content["points"]),
            tuple(content["axes"]),
            content["noise"],
            content["freedom"],
            Law(**{name: np.array(values) for name, values in content["draws"].items()}),
            np.array(content["noises"]),
        )
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DamagedArtifact(f"{scaling.location}/{LAW} is not a law.", make_again("scaling")) from error


def _short(values: Any) -> list[float]:
    return [float(f"{value:.7g}") for value in values]
