"""A reward model: a decoder of transformers with one number in place of its logits, read at the last token of a text.

Only differences of Bradley–Terry rewards mean something. To give a single reward a meaning, the mean over training
answers is measured after training and written to config.json, and `Judge` subtracts it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from models.conversation import Messages, render
from models.pretrained import allocate_pretrained, check_shards, context_of, load_config
from models.tokenizer import load_tokenizer
from storage.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

MEAN_FIELD = "gristmill_reward_mean"  # in a reward model's config.json
JUDGED_ROWS = 8  # in a forward pass


def load_classifier(folder: Path, seed: int, *, read: bool = True) -> PreTrainedModel:
    """The decoder of a folder with a reward head: the folder's own, or a new one drawn with the seed. Without `read` it
    is as `allocate_pretrained` leaves it.

    Raises ConfigError for an architecture without a classifier in transformers.
    """
    from transformers import AutoModelForSequenceClassification, set_seed

    check_shards(folder)
    config = load_config(folder)
    if type(config) not in AutoModelForSequenceClassification._model_mapping:
        raise ConfigError(
            f"transformers has no sequence classifier for {config.model_type}, and a reward model is one.",
            "Set reward to null, or start from another model.",
        )
    from trl.trainer.reward_trainer import suppress_seqcls_warning

    set_seed(seed)
    if not read:
        return allocate_pretrained(folder, AutoModelForSequenceClassification, num_labels=1)
    with suppress_seqcls_warning():
        model: PreTrainedModel = AutoModelForSequenceClassification.from_pretrained(
            folder,
            num_labels=1,
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
        )
    return model


class Judge:
    """Rewards of conversations by a trained reward model, minus its mean over the answers that it was trained on."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
        self.model = model.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.mean = float(getattr(model.config, MEAN_FIELD, 0.0))
        self._pad = int(model.config.pad_token_id)
        self._context = context_of(model.config)

    @classmethod
    def load(cls, folder: Path, device: torch.device | str = "cpu") -> Judge:
        """The judge in a folder that the stage `reward` wrote."""
        return cls(load_classifier(folder, 0).to(device), load_tokenizer(folder))

    def rewards(self, conversations: Sequence[Messages]) -> list[float]:
        """A reward for each conversation, as the chat template renders it. Beyond the context, only its end counts."""
        ids = [render(self.tokenizer, messages)["input_ids"][-self._context :] for messages in conversations]
        rewards: list[float] = []
        for start in range(0, len(ids), JUDGED_ROWS):
            rewards += self._of_ids(ids[start : start + JUDGED_ROWS]).tolist()
        return rewards

    @torch.no_grad()
    def _of_ids(self, rows: Sequence[Sequence[int]]) -> Tensor:
        longest = max(map(len, rows))
        ids_BT = torch.tensor([[*row, *[self._pad] * (longest - len(row))] for row in rows])
        mask_BT = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
        device = self.model.device
        logits: Tensor = self.model(input_ids=ids_BT.to(device), attention_mask=mask_BT.to(device)).logits
        return logits[:, 0].float().cpu() - self.mean


def write_mean(folder: Path, mean: float) -> None:
    """Write the mean to the config.json of a reward model, formatted as by save_pretrained."""
    path = folder / "config.json"
    config: dict[str, Any] = json.loads(path.read_text())
    config[MEAN_FIELD] = mean
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
