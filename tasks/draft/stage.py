"""The `draft` stage: prune and distill, as in post-training, beside the chain."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from models.pretrained import load_config, weight_files
from models.tokenizer import DIGEST_FIELD, copy_tokenizer, load_tokenizer, tokenizer_digest
from storage.artifact import Artifact
from storage.errors import TokenizerMismatch
from tasks.base import base
from tasks.draft.config import DraftConfig
from tasks.posttrain import check as posttrain
from tasks.posttrain.methods.distill import distill
from tasks.posttrain.prune import prune
from tasks.stage import stage
from tasks.stage.output import Output
from tasks.stage.runtime import Runtime
from tasks.training.device_lock import own_turn
from tasks.training.model_folder import check_tokenizer


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
        small = Artifact.at(with_tokenizer_of(model.path, taken.path, out.scratch / "draft"))
    if config.prune is not None:
        small = out.obtain(prune, config.prune, small, instructions, name="draft.prune").part("model")
    if config.distill is not None:
        small = out.obtain(distill, config.distill, small, instructions, model, name="draft.distill").part("model")
    shutil.copytree(small.path, out.path / "model", copy_function=shutil.copyfile)
    sizes = [sum(file.stat().st_size for file in weight_files(one.path)) for one in (small, model)]
    out.count(bytes=sizes[0], bytes_of_model=sizes[1], summary=f"{sizes[0] / 1e6:,.1f} of {sizes[1] / 1e6:,.1f} MB")


def with_tokenizer_of(model: Path, small: Path, folder: Path) -> Path:
    """Copy the model in `small`, with the tokenizer and chat template of `model`, to `folder`. Returns `folder`.

    Raises TokenizerMismatch for another vocabulary.
    """
    ours, theirs = (load_tokenizer(one).get_vocab() for one in (model, small))
    sizes = [load_config(one).vocab_size for one in (model, small)]
    if ours != theirs or sizes[0] != sizes[1]:
        raise TokenizerMismatch(
            f"The draft has another vocabulary than the released model: {sizes[1]:,} ids, of which "
            f"{len(ours.items() & theirs.items()):,} are those of {sizes[0]:,}.",
            "Choose a draft with the same tokenizer, or make one with draft.prune.",
        )
    shutil.copytree(small, folder, copy_function=shutil.copyfile)
    copy_tokenizer(model, folder)
    path = folder / "config.json"
    config = {**json.loads(path.read_text(encoding="utf-8")), DIGEST_FIELD: tokenizer_digest(folder)}
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return folder
