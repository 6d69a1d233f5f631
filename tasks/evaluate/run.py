"""The child of `evaluate`: `python -m tasks.evaluate.run SPEC` measures bits per byte, and has each model answer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from models.kernels.attention import for_any_shape
from models.likelihood import mean_loss
from models.pretrained import context_of, load_pretrained
from models.tokenizer import load_tokenizer
from storage.shards.token_stream import TokenStream
from tasks.children.child import emit, run_as_child
from tasks.children.spec import ChildSpec
from tasks.evaluate.answers import answers
from tasks.evaluate.config import EvaluateConfig
from tasks.training.bits_per_byte import likelihood
from tasks.training.peak import peak_memory

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

LONGEST_WINDOW = 4096  # tokens, of bits per byte: some contexts are longer than the text


class EvaluateSpec(ChildSpec):
    """Written as JSON by the stage."""

    config: EvaluateConfig
    models: dict[str, Path]
    tokenizer_digest: str
    validation: list[Path]


@for_any_shape()
def run(path: Path) -> None:
    """Bits per byte and answers of every model in `spec.models`, written as JSON to `spec.result`."""
    spec = EvaluateSpec.model_validate_json(path.read_text())
    torch.set_num_threads(spec.runtime.compute.threads)
    cuda = spec.runtime.compute.device == "cuda" or (
        spec.runtime.compute.device == "auto" and torch.cuda.is_available()
    )
    device = "cuda" if cuda else "cpu"
    prompts = spec.config.prompts
    measured: dict[str, Any] = {}
    for number, (name, folder) in enumerate(spec.models.items()):
        emit(done=number, note=name)
        model, tokenizer = load_pretrained(folder).to(device).eval(), load_tokenizer(folder)
        measured[name] = {
            "bits_per_byte": _bits_per_byte(spec, model, tokenizer),
            "answers": answers(model, tokenizer, prompts, spec.config.answer_tokens) if prompts else [],
        }
    spec.finish({"models": measured, "facts": {"peak_memory_bytes": peak_memory(torch.device(device))}})


def _bits_per_byte(spec: EvaluateSpec, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> float:
    begin = tokenizer.encode("")
    stream = TokenStream(spec.validation, tokenizer_digest=spec.tokenizer_digest)
    measured = likelihood(
        lambda ids_BT, targets_BT: mean_loss(model, ids_BT, targets_BT, begin),
        stream,
        context=min(context_of(model.config) - len(begin), LONGEST_WINDOW, stream.tokens - 1),
        max_tokens=spec.config.validation_tokens,
    )
    return measured.bits_per_byte


if __name__ == "__main__":
    run_as_child(run)
