"""The inputs of a finished stage, from its manifest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from flows.estimates.work import FLOAT32, Seen
from models.compute import executed_flops_per_token
from models.presets import ShapeError, count_parameters, derive
from storage.manifest import Manifest
from tasks.pretrain import PretrainConfig

MODELS = "models."  # the prefix of an evaluation's inputs that are models


class Made:
    """The manifests of a store, by location."""

    def __init__(self, manifests: Mapping[str, Manifest]) -> None:
        self._manifests = manifests
        self._wholes = {part.location: made for made in manifests.values() for part in made.uses.values()}

    def seen_by(self, made: Manifest, location: str) -> Seen:
        """The inputs of the stage that made this artifact."""
        facts, counts = made.facts, made.counts
        whole, held_out = self._wholes.get(location), made.origins.get("validation")
        kept = self._manifests.get(held_out.location) if held_out else None
        model = made.origins.get("model")
        return Seen(
            text=counts.get("sample_bytes") or facts.get("bytes_in") or facts.get("text_bytes"),
            files=float(facts.get("files", 0)),
            kept=whole.facts.get("text_bytes") if whole else None,
            pairs=pairs_of(made),
            pair_tokens=facts.get("tokens_a_pair"),
            parameters=self.parameters(model.location) if model else parameters_of(made),
            flops=flops_of(made) if made.stage == "pretrain" else None,
            models=self._models(made),
            questions=questions_of(made),
            held_out=float(kept.counts.get("validation", {}).get("tokens", 0)) if kept else 0.0,
        )

    def parameters(self, location: str) -> float | None:
        """The parameters of the model at a location, or None if it is unknown."""
        manifest = self._manifests.get(location)
        return None if manifest is None else parameters_of(manifest)

    def _models(self, made: Manifest) -> tuple[float, ...] | None:
        sizes = [self.parameters(ref.location) for name, ref in made.origins.items() if name.startswith(MODELS)]
        known = tuple(size for size in sizes if size)
        return known if sizes and len(known) == len(sizes) else None


def parameters_of(made: Manifest) -> float | None:
    """A model's parameters as counted, or from the bytes of its weights in float32."""
    weights = sum(entry.size for name, entry in made.files.items() if name.endswith(".safetensors"))
    return float(made.counts.get("parameters", 0)) or weights / FLOAT32 or None


def pairs_of(made: Manifest) -> float | None:
    """Pairs that a post-training stage learned from or held out, or that a data stage read."""
    counts = made.counts
    if "instructions" in counts and isinstance(counts["instructions"], Mapping):
        return float(sum(counts[role]["in"] for role in ("instructions", "preferences", "labelled") if role in counts))
    if "conversations" in counts:  # of best_of_n, whether it asked them or not
        return float(counts["conversations"]["in"])
    pairs = counts.get("documents") or counts.get("pairs")
    return float(pairs["kept"]) if isinstance(pairs, Mapping) and "kept" in pairs else None


def questions_of(evaluated: Manifest) -> float | None:
    """The number of questions that an evaluation asked each model."""
    scores = [model.get("tasks", {}) for model in evaluated.counts.get("scores", {}).values()]
    return max((sum(float(score.get("items") or 0) for score in tasks.values()) for tasks in scores), default=None)


def flops_of(pretrained: Manifest) -> float | None:
    """FLOPs that a pretraining executed, by its config and its vocabulary, which its parameters reveal."""
    tokens, parameters = pretrained.counts.get("tokens_seen"), pretrained.counts.get("parameters")
    try:
        config = PretrainConfig.model_validate(pretrained.payload.config)
        if config.model is None:  # a base, whose shape the stage reported
            shown = pretrained.counts.get("tables", {}).get("Shape", ())
            each = next((float(row["value"]) for row in shown if row["name"] == "FLOPs per token"), 0.0)
            return each * tokens if tokens and each else None
        shape = derive(config.new_model, int(pretrained.counts.get("vocab_size", 0)) or _vocabulary(config, parameters))
    except (ValidationError, ShapeError, ValueError):
        return None
    return float(executed_flops_per_token(shape) * tokens) if tokens else None


def _vocabulary(config: PretrainConfig, parameters: Any) -> int:
    """The vocabulary size that gives a model this many parameters, which grow linearly with it."""
    if parameters is None:
        raise ValueError("the number of parameters is not known")
    small, large = (count_parameters(derive(config.new_model, size)) for size in (1024, 2048))
    return max(1, round(1024 + 1024 * (float(parameters) - small) / (large - small)))
