"""The `draft` stage: prune and distill, as in post-training, beside the chain."""

from __future__ import annotations

import shutil

from models.pretrained import weight_files
from storage.artifact import Artifact
from tasks.base import base
from tasks.draft.config import DraftConfig
from tasks.posttrain import check as posttrain
from tasks.posttrain.methods.distill import distill
from tasks.posttrain.prune import prune
from tasks.stage import stage
from tasks.stage.output import Output
from tasks.stage.runtime import Runtime
from tasks.training.device_lock import own_turn
from tasks.training.model_folder import check_tokenizer, with_tokenizer_of


def check(config: DraftConfig, runtime: Runtime) -> None:
    """Raises ConfigError for settings that the distillation can't honour."""
    if config.distill is not None:
        posttrain.check_runtime("distill", config.distill, runtime)


def check_here(config: DraftConfig, runtime: Runtime) -> None:
    """Raises ConfigError for devices that the distillation needs and this machine doesn't have."""
    if config.distill is not None:
        posttrain.check_here(config.distill, runtime)


@stage(
    version=1,
    runtime=("data", "compute", "training", "posttrain", "endpoint"),
    check=check,
    check_here=check_here,
    device_lock=own_turn,
)
def draft(config: DraftConfig, model: Artifact, instructions: Artifact, out: Output) -> None:
    """A small model that guesses several tokens of `model`, which checks them in one pass (Leviathan et al. 2023).

    Writes model/. Raises TokenizerMismatch for a vocabulary other than that of `model`, as guesses are ids.
    """
    check_tokenizer(model.path)
    small = model
    if config.base is not None:
        taken = out.obtain(base, config.base, name="draft.base").part("model")
        remedy = "Choose a draft with the same tokenizer, or make one with draft.prune."
        small = Artifact.at(with_tokenizer_of(model.path, taken.path, out.scratch / "draft", "The draft", remedy))
    if config.prune is not None:
        small = out.obtain(prune, config.prune, small, instructions, name="draft.prune").part("model")
    if config.distill is not None:
        small = out.obtain(distill, config.distill, small, instructions, model, name="draft.distill").part("model")
    shutil.copytree(small.path, out.path / "model", copy_function=shutil.copyfile)
    sizes = [sum(file.stat().st_size for file in weight_files(one.path)) for one in (small, model)]
    out.count(bytes=sizes[0], bytes_of_model=sizes[1], summary=f"{sizes[0] / 1e6:,.1f} of {sizes[1] / 1e6:,.1f} MB")
