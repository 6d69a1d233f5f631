"""What counts as mathematics."""

from __future__ import annotations

from pydantic import Field

from tasks.stage.config import StageConfig


class MathematicsConfig(StageConfig):
    """Settings that say what a LaTeX formula is."""

    environments: list[str] = Field(
        ["equation", "align", "gather", "multline", "eqnarray", "math", "displaymath", "alignat", "flalign", "array"],
        description="environments that contain formulas, with or without a star",
    )
    longest_inline: int = Field(
        400, ge=1, description="maximum characters of a formula between single dollars: two prices are not a formula"
    )
