"""A model folder in transformers: float32 on the CPU, or quantized by bitsandbytes as its config says.

Shapes: T tokens of a sequence, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from models.kernels.virtual_tokens import FIELD
from models.pretrained import load_pretrained
from models.runtimes.greedy import ends_of
from models.runtimes.protocol import AllLogProbabilities, LogProbabilities, RuntimeFault
from models.runtimes.token_runtime import TokenizedRuntime
from models.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROWS = 128  # of logits at a time, in float64


def load_model(folder: Path, device: str = "cpu", **options: Any) -> PreTrainedModel:
    """A model as any user of transformers loads it, for inference. Raises RuntimeFault for damaged files."""
    from safetensors import SafetensorError

    try:
        # Quantized layers run on the CPU too, so that proving a release doesn't need a GPU
        return load_pretrained(folder, device_map=device, **options).eval()
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise RuntimeFault(f"transformers can't load {folder}: {error}") from error


def _adapted(model: PreTrainedModel, adapter: Path) -> Any:
    from peft import PeftModel

    adapted: Any = PeftModel.from_pretrained(model, adapter, torch_device=str(model.device)).eval()
    settings = adapted.active_peft_config
    if settings.is_prompt_learning:
        setattr(model.config, FIELD, settings.num_virtual_tokens)
    return adapted


class TransformersRuntime(TokenizedRuntime):
    """A folder as transformers loads it, optionally with an adapter: a folder of PEFT with a tokenizer."""

    def __init__(self, folder: Path, device: str = "cpu", adapter: Path | None = None, **options: Any) -> None:
        self.model: Any = load_model(folder, device, **options)
        if adapter is not None:
            self.model = _adapted(self.model, adapter)
        self.config = self.model.config
        self.tokenizer = load_tokenizer(adapter or folder)
        self.ends = ends_of(self.model, self.tokenizer)

    @torch.no_grad()
    def log_probabilities(self, prompt: Sequence[int]) -> LogProbabilities:
        logits_V = self.model(self._row(prompt)).logits[0, -1].double()
        log_probabilities: LogProbabilities = torch.log_softmax(logits_V, -1).cpu().numpy()
        return log_probabilities

    @torch.no_grad()
    def all_log_probabilities(self, ids: Sequence[int]) -> AllLogProbabilities:
        logits_TV = self.model(self._row(ids)).logits[0, -len(ids) :].float()  # PEFT's have those of a prompt too
        # For 49,152 tokens torch's own log_softmax, in float32, is off by 1e-5 throughout
        for rows in logits_TV.split(ROWS):
            rows -= torch.logsumexp(rows.double(), -1, keepdim=True).float()
        log_probabilities: AllLogProbabilities = logits_TV.cpu().numpy()
        return log_probabilities

    def greedy(self, prompt: Sequence[int], tokens: int) -> list[int]:
        ids = self._row(prompt)
        generated = self.model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens
        )
        continuation: list[int] = generated[0, len(prompt) :].tolist()
        return continuation

    def _row(self, ids: Sequence[int]) -> torch.Tensor:
        return torch.tensor([list(ids)], device=self.model.device)

    def close(self) -> None:
        del self.model
