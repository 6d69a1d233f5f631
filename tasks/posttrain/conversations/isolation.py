"""Tests whether a model keeps conversations in one row apart.

Positions that restart keep them apart, and a model must heed these both in its position encoding and in its attention.
Llama, Mistral, Qwen 3, Gemma and GPT-2 do. Others silently ignore them, such as Bloom, OPT and Falcon, or have memory
besides attention, such as Mamba. So every model is tested.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback

from storage.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LENGTHS = ((5, 8), (9, 4))  # conversations of two rows: a single row is a special case for some kernels
TOLERANCE, ROUNDED = 1e-4, 5e-2  # shares of the largest logit, the second for models that multiply in 16 bits
KERNELS = ("sdpa", "eager")  # other kernels find documents by the positions themselves, and in a single row only


class IsolationCheck(TrainerCallback):
    """Checks a model that an engine divides, once it is divided: before that its weights are not read."""

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: Any, **_: Any) -> None:
        """Check it."""
        check_isolation(model, bfloat16=args.bf16)


def check_isolation(model: PreTrainedModel, *, bfloat16: bool = False) -> None:
    """Raises ConfigError unless the logits of conversations in one row are those of each by itself. `bfloat16` says
    that the model multiplies in it."""
    kernel = str(model.config._attn_implementation)
    if kernel not in KERNELS:
        raise _refusal(model, f"attention {kernel} would mix them")
    rounded = bfloat16 or getattr(model, "is_quantized", False)
    tolerance = ROUNDED if rounded else TOLERANCE
    was_training = model.training
    model.eval()
    try:
        difference, scale = _difference(model)
    except TypeError as error:
        raise _refusal(model, "it takes no positions") from error
    finally:
        model.train(was_training)
    if not difference <= tolerance * scale:  # true for NaN too
        raise _refusal(model, f"logits differ by {difference:.1e} from those of each by itself")


@torch.no_grad()
def _difference(model: PreTrainedModel) -> tuple[float, float]:
    """The largest difference of a logit from that of the conversation by itself, and the largest logit."""
    generator = torch.Generator().manual_seed(0)
    vocabulary = model.get_input_embeddings().num_embeddings
    ids_BT = torch.randint(vocabulary, (len(LENGTHS), sum(LENGTHS[0])), generator=generator).to(model.device)
    positions_BT = torch.stack([torch.cat([torch.arange(length) for length in row]) for row in LENGTHS])
    together = model(input_ids=ids_BT, position_ids=positions_BT.to(model.device), use_cache=False).logits
    difference = scale = 0.0
    for number, row in enumerate(LENGTHS):
        start = 0
        for length in row:
            alone = model(input_ids=ids_BT[number : number + 1, start : start + length], use_cache=False).logits[0]
            difference = max(difference, float((together[number, start : start + length] - alone).abs().max()))
            scale = max(scale, float(alone.abs().max()))
            start += length
    return difference, scale


def _refusal(model: PreTrainedModel, why: str) -> ConfigError:
    return ConfigError(
        f"runtime.posttrain.packing is on, but {model.config.model_type} can't keep conversations in one row "
        f"apart: {why}.",
        "Set it to false.",
    )
