"""The key `pretrain.rope_scaling`: how the positions of a base are scaled for a longer context."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from tasks.stage.config import StageConfig

OWN = {  # the numbers of each method
    "theta": ("theta",),
    "linear": ("factor",),
    "ntk": ("factor",),
    "yarn": ("factor", "attention_factor", "beta_fast", "beta_slow"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}


class RopeScalingConfig(StageConfig):
    """How a base reads beyond its context. Numbers of another method are refused."""

    method: Literal["theta", "linear", "ntk", "yarn", "llama3"] = Field(
        description="theta: a new base of the rotary frequencies. linear: positions divided by the factor (Chen et al. "
        "2023). ntk: a base that divides the lowest frequency by the factor and hardly changes the highest. yarn: long "
        "waves divided, short ones kept, and attention sharpened (Peng et al. 2023). llama3: long waves divided by "
        "Llama 3.1's rule. GGUF holds llama3 only for the architecture llama"
    )
    factor: float | None = Field(
        None, gt=1, description="the new context divided by the base's, or more (default: that quotient), not for theta"
    )
    theta: float | None = Field(None, gt=0, description="the new base of the frequencies, for theta")
    attention_factor: float | None = Field(
        None, gt=0, description="factor on queries and keys, for yarn (default: 0.1 ln(factor) + 1)"
    )
    beta_fast: float | None = Field(
        None, gt=0, description="frequencies with more turns in the base's context are kept, for yarn (default: 32)"
    )
    beta_slow: float | None = Field(
        None, gt=0, description="frequencies with fewer turns are divided by the factor, for yarn (default: 1)"
    )
    low_freq_factor: float | None = Field(
        None, gt=0, description="frequencies with fewer turns are divided by the factor, for llama3 (default: 1)"
    )
    high_freq_factor: float | None = Field(
        None, gt=0, description="frequencies with more turns in the base's context are kept, for llama3 (default: 4)"
    )

    @model_validator(mode="after")
    def _numbers_of_its_method(self) -> RopeScalingConfig:
        for name in type(self).model_fields:
            if name != "method" and getattr(self, name) is not None and name not in OWN[self.method]:
                owners = " and ".join(method for method, names in OWN.items() if name in names)
                raise ValueError(f"{name} is of {owners}, not of {self.method}: set it to null")
        if self.method == "theta" and self.theta is None:
            raise ValueError("the method theta needs theta, the new base of the frequencies")
        return self
