"""The config of the stage `ablate`: the arms and seeds of a matrix."""

from __future__ import annotations

from pydantic import Field

from tasks.stage.config import StageConfig

Target = dict[str, float] | list[str]


class ArmConfig(StageConfig):
    """One arm: the settings in which it differs from the reference."""

    name: str
    settings: dict[str, str] = Field({}, description="value by key, as on the command line. None for the reference")
    validation_share: float | None = Field(None, description="of its documents, or null for a base without documents")
    flops: float | None = Field(None, description="of its pretraining, if the reference has a ladder to compare with")


class AblateConfig(StageConfig):
    """The matrix. The first arm is the reference."""

    arms: list[ArmConfig] = Field(min_length=1)
    seeds: list[int] = Field(min_length=1)
    link: str = Field(description="the stage whose model is measured")
    target: Target | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="what is compared first: sources, whose held-out text counts as it is, or weights of sources, "
        "files and benchmarks (default: all held-out text)",
    )
    stopped: dict[str, int] = Field({}, description="arms that were given up, and after how many training steps")
    diverged: dict[str, str] = Field({}, description="arms whose training diverged, and how")
