"""What counts as mathematics."""

from __future__ import annotations

from pydantic import Field

from tasks.stage.config import StageConfig


class MathematicsConfig(StageConfig):
    """Formulas between marks of LaTeX."""

    environments: list[str] = Field(
        ["equation", "align", "gather", "multline", "eqnarray", "math", "displaymath", "alignat", "flalign", "array"],
        description="environments that hold formulas; those with a star too",
    )
    longest_inline: int = Field(
        400, ge=1, description="longest formula between single dollars, in characters: two prices are none"
    )
