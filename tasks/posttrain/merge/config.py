"""The settings of merging."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from tasks.base.config import BaseConfig
from tasks.stage.config import StageConfig

MergeMethod = Literal["linear", "ties", "dare_linear", "dare_ties"]
AVERAGES = ("linear", "dare_linear")  # whose weights share a whole unless the profile sets them


class MergedModel(StageConfig):
    """A model that was trained from the base of the chain: a link, or one from elsewhere."""

    link: str | None = Field(None, min_length=1, description="an earlier link of the chain, or base")
    base: BaseConfig | None = Field(None, description="a model from elsewhere, such as `artifact: other/sft@1`")
    weight: float | None = Field(
        None, description="factor of its change to the base (default: 1 / models, and 1 with ties and dare_ties)"
    )

    @property
    def named(self) -> str:
        """Its name in tables and errors."""
        return self.link or (self.base.named if self.base else "")

    @model_validator(mode="after")
    def _is_one_model(self) -> Self:
        if (self.link is None) == (self.base is None):
            raise ValueError("name one model: a link, or a base from elsewhere")
        return self


class MergeConfig(StageConfig):
    """The result is the base plus the models' changes to it, each times its weight, combined tensor by tensor."""

    models: list[MergedModel] = Field(min_length=2, description="the models to merge")
    method: MergeMethod = Field(
        "linear",
        description="linear: the sum, which by default is the mean of the models (Wortsman et al. 2022). ties: the "
        "largest numbers only, and of these the mean of those with the sign that prevails (Yadav et al. 2023). "
        "dare_linear, dare_ties: a random share only, scaled up (Yu et al. 2024), then their sum, or as ties",
    )
    density: float | None = Field(
        None, gt=0, lt=1, description="share of a change's numbers that ties and dare keep (default: 0.5)"
    )
    seed: int = Field(0, ge=0, description="seed of what dare keeps")

    @property
    def links(self) -> list[str]:
        """The links among the models."""
        return [one.link for one in self.models if one.link is not None]

    @property
    def weights(self) -> list[float]:
        """The factor of each model."""
        usual = 1 / len(self.models) if self.method in AVERAGES else 1.0
        return [usual if one.weight is None else one.weight for one in self.models]

    @model_validator(mode="after")
    def _settings_apply(self) -> Self:
        if self.method == "linear" and self.density is not None:
            raise ValueError("linear keeps all numbers: leave density out, or choose ties or dare_linear")
        if self.seed and not self.method.startswith("dare"):
            raise ValueError(f"{self.method} draws nothing: leave seed out")
        names = [one.named for one in self.models]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"it names {', '.join(repeated)} twice: give it a weight instead")
        return self
