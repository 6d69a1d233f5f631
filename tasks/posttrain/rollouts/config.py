"""The engines that sample answers. No torch."""

from __future__ import annotations

from importlib.util import find_spec
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from storage.errors import ConfigError
from tasks.posttrain.config import PosttrainConfig
from tasks.stage.config import StageConfig
from tasks.stage.runtime import EndpointUrl
from tasks.training.adapters.config import LoraConfig

Correction = Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
OF_OTHERS = ("correction", "cap", "max_mismatch")  # settings that an engine with the trainer's probabilities lacks


class VllmConfig(StageConfig):
    """vLLM, in the processes of the training or as a server that `trl vllm-serve` started on other GPUs."""

    mode: Literal["colocate", "server"] = Field("colocate", description="where it runs")
    url: EndpointUrl | None = Field(None, description="server: its address")
    memory_share: float = Field(0.3, gt=0, lt=1, description="colocate: its share of a GPU's memory")
    sleep: bool = Field(True, description="colocate: free its memory while the model learns")

    @model_validator(mode="after")
    def _has_what_its_mode_needs(self) -> Self:
        if (self.mode == "server") != (self.url is not None):
            raise ValueError("url belongs to mode server: set both, or neither")
        if self.mode == "server" and (self.memory_share, self.sleep) != (0.3, True):
            raise ValueError("memory_share and sleep belong to mode colocate: a server has its own settings")
        return self


class EngineConfig(StageConfig):
    """What samples answers."""

    takes_vllm: ClassVar[bool] = False

    engine: Literal["transformers", "continuous", "llama.cpp", "vllm"] = Field(
        "transformers",
        description="transformers: the trained model itself. continuous: it too, by transformers' continuous batching. "
        "llama.cpp: a copy on the CPU. vllm (grpo only): a copy on GPUs, for which vLLM must be installed",
    )

    @model_validator(mode="after")
    def _runs_here(self) -> Self:
        if self.engine == "vllm" and not self.takes_vllm:
            raise ValueError("TRL's trainer runs vllm, so it is for grpo only: choose another engine")
        return self


class RolloutConfig(EngineConfig):
    """What samples answers. Where its probabilities aren't the trainer's, an answer's loss is weighed by the ratio of
    the two (truncated or masked importance sampling, Yao et al. 2025)."""

    correction: Correction = Field(
        "token_truncate",
        description="of each token's ratio or of a whole answer's, and what becomes of one above `cap`: it is lowered "
        "to the cap (truncate), or the token or answer has no part in the loss (mask)",
    )
    cap: float = Field(3.0, gt=1, description="largest ratio of probabilities, the trainer's to the engine's")
    max_mismatch: float | None = Field(
        0.1,
        gt=0,
        description="mean difference of log-probabilities, in nats a token of a step, beyond which a run ends (null: "
        "none)",
    )

    @property
    def corrected(self) -> bool:
        """Whether the engine has probabilities of its own."""
        return self.engine != "transformers"

    @model_validator(mode="after")
    def _settings_apply(self) -> Self:
        default = type(self).model_fields
        for name in () if self.corrected else OF_OTHERS:
            if getattr(self, name) != default[name].default:
                raise ValueError(f"{name} doesn't apply to transformers, which samples by the trainer's probabilities")
        return self


class GrpoRolloutConfig(RolloutConfig):
    """What samples answers, vLLM too. Where its probabilities aren't the trainer's, an answer's loss
    is weighed by the ratio of the two (truncated or masked importance sampling, Yao et al. 2025)."""

    takes_vllm: ClassVar[bool] = True

    vllm: VllmConfig | None = Field(None, description="settings of engine vllm (null: colocated)")

    @model_validator(mode="after")
    def _has_settings_of_its_engine(self) -> Self:
        if self.vllm is not None and self.engine != "vllm":
            raise ValueError(f"vllm has settings, but the engine is {self.engine}: leave them out")
        return self


def check_engine(config: PosttrainConfig, rollout: RolloutConfig) -> None:
    """Raises ValueError for adapters that an engine can't sample with."""
    adapter = config.adapter
    if rollout.engine != "llama.cpp" or adapter is None:
        return
    if not isinstance(adapter, LoraConfig) or adapter.dora or adapter.quantize != "none":
        raise ValueError(
            "rollout.engine llama.cpp takes a LoRA over float32 only: choose transformers, or another adapter"
        )


def check_engine_here(name: str, rollout: EngineConfig) -> None:
    """Raises ConfigError for an engine whose package is missing."""
    package = {"vllm": "vllm", "llama.cpp": "xllamacpp"}.get(rollout.engine)
    if package is not None and find_spec(package) is None:
        raise ConfigError(
            f"{name}.rollout.engine is {rollout.engine}, but the package {package} isn't installed.",
            "Install it in an environment with this one's torch, or choose the engine transformers.",
        )
