"""Opens the engine of a profile, or gives TRL the arguments to do so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.tokenizer import padding_id
from tasks.posttrain.rollouts.config import EngineConfig, GrpoRolloutConfig
from tasks.posttrain.rollouts.engine import ContinuousEngine, Engine, TransformersEngine
from tasks.posttrain.rollouts.llama_cpp import LlamaCppEngine

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def open_engine(
    rollout: EngineConfig,
    folder: Path,
    tokenizer: PreTrainedTokenizerFast,
    ends: Sequence[int],
    temperature: float,
    *,
    learned: int,
    threads: int,
) -> Engine:
    """The engine of a profile over the model in a folder. It has the weights of that, or needs an update first."""
    if rollout.engine == "llama.cpp":
        return LlamaCppEngine(folder, ends, temperature, threads)
    if rollout.engine == "continuous":
        return ContinuousEngine(ends, padding_id(tokenizer), temperature)
    return TransformersEngine(tokenizer, ends, temperature, learned)


def vllm_arguments(rollout: GrpoRolloutConfig) -> dict[str, Any]:
    """TRL's arguments for the correction, and for vLLM."""
    corrected = {
        "vllm_importance_sampling_correction": rollout.corrected,
        "vllm_importance_sampling_mode": rollout.correction,
        "vllm_importance_sampling_clip_max": rollout.cap,
    }
    if rollout.engine != "vllm":
        return corrected
    settings = rollout.vllm
    if settings is None or settings.mode == "colocate":
        share, sleep = (0.3, True) if settings is None else (settings.memory_share, settings.sleep)
        own = {"vllm_mode": "colocate", "vllm_gpu_memory_utilization": share, "vllm_enable_sleep_mode": sleep}
    else:
        own = {"vllm_mode": "server", "vllm_server_base_url": settings.url}
    return {**corrected, "use_vllm": True, **own}
