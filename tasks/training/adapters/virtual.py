"""Virtual tokens, by PEFT's prefix and prompt tuning: how they begin, and how they are kept beside their base.

PEFT draws a prefix from a normal distribution of its own, far from the keys and values of any text. Here both kinds
begin as tokens of the vocabulary: a prompt as their embeddings, a prefix as their keys and values (Li & Liang 2021,
section 7.4; Lester et al. 2021, section 3.2.1).

Shapes: N virtual tokens, L layers, H heads of keys and values, D their size, C channels.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from models.kernels.virtual_tokens import FIELD, FOLDER, keys_and_values
from models.pretrained import load_pretrained
from storage.errors import TrainingError
from tasks.training.adapters.save import TOLERANCE, Batch, logits_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@torch.no_grad()
def begin_as_text(model: Any, seed: int) -> None:
    """Set the virtual tokens of PEFT's model to those of a text: tokens of the vocabulary, drawn by the seed."""
    base, weight = model.get_base_model(), model.prompt_encoder["default"].embedding.weight
    generator = torch.Generator().manual_seed(seed)
    embeddings = base.get_input_embeddings()
    ids = torch.randint(embeddings.num_embeddings, (len(weight),), generator=generator)
    drawn_NC = embeddings(ids.to(weight.device))
    if model.active_peft_config.peft_type == "PREFIX_TUNING":
        past = keys_and_values(base.eval(), drawn_NC)  # (L, 2, H, N, D)
        drawn_NC = past.permute(3, 0, 1, 2, 4).reshape(len(weight), -1)
        base.train()
    weight.copy_(drawn_NC)


def save_beside(base: PreTrainedModel, adapter: Path, folder: Path, batches: Sequence[Batch]) -> dict[str, Any]:
    """Write a model folder: `base` with the adapter beside it. Returns the counts: trained
    and all parameters, the share, and the virtual tokens.

    Raises TrainingError if PEFT computes other logits with the same adapter than the model that is loaded again.
    """
    from peft import PeftModel

    model: Any = PeftModel.from_pretrained(base, adapter, torch_device="cpu").eval()
    tokens = model.active_peft_config.num_virtual_tokens
    trained = sum(value.numel() for value in model.prompt_encoder.parameters())
    before = logits_of(model, batches)
    setattr(base.config, FIELD, tokens)
    base.save_pretrained(folder)
    shutil.copytree(adapter, folder / FOLDER)
    after = logits_of(load_pretrained(folder).eval(), batches)
    difference = max(float((one - other).abs().max()) for one, other in zip(before, after, strict=True))
    if not difference <= TOLERANCE:
        raise TrainingError(f"PEFT's logits with {adapter.name}/ differ by {difference:.1e}.", "Report this defect.")
    parameters = sum(value.numel() for value in base.parameters()) + trained
    return {
        "trained_parameters": trained,
        "parameters": parameters,
        "trainable_share": round(trained / parameters, 6),
        "virtual_tokens": tokens,
    }
