"""Opens the engine of a profile, or gives TRL the arguments to do so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.posttrain.rollouts.config import RolloutConfig
from tasks.posttrain.rollouts.engine import ContinuousEngine, Engine
from tasks.posttrain.rollouts.llama_cpp import LlamaCppEngine


def open_engine(
    rollout: RolloutConfig, folder: Path, ends: Sequence[int], pad: int, temperature: float, threads: int
) -> Engine | None:
    """The engine of a profile over the model in a folder, or None for one that TRL runs."""
    if rollout.engine == "continuous":
        return ContinuousEngine(ends, pad, temperature)
    if rollout.engine == "llama.cpp":
        return LlamaCppEngine(folder, ends, temperature, threads)
    return None


def vllm_arguments(rollout: RolloutConfig) -> dict[str, Any]:
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
