"""Has a model keep conversations in one row apart, and tests that it does.

Positions that restart keep them apart, and a model must heed these both in its position encoding and in its attention.
Llama, Mistral, Qwen 3, Gemma and GPT-2 do. Others silently ignore them, such as Bloom, OPT and Falcon, or have memory
besides attention, such as Mamba. So every model is tested: first with attention that needs no mask, then with its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback

from storage.errors import ConfigError
from tasks.posttrain.attention.apart import PACKED, can_attend_apart

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LENGTHS = ((5, 8), (9, 4))  # conversations of two rows: a single row is a special case for some kernels
TOLERANCE, ROUNDED = 1e-4, 5e-2  # shares of the largest logit, the second for models that multiply in 16 bits
KERNELS = ("sdpa", "eager")  # other kernels find documents by the positions themselves, and in a single row only


class Isolation(TrainerCallback):
    """For a model that an engine divides, once it is divided: before that its weights are not read."""

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: Any, **_: Any) -> None:
        """Have it keep conversations apart."""
        isolate(model, bfloat16=args.bf16)


def isolate(model: PreTrainedModel, *, bfloat16: bool = False) -> None:
    """Have it keep conversations apart, without a mask if it can. Raises ConfigError if it can't at all."""
    if not attends_apart(model, bfloat16=bfloat16):
        check_isolation(model, model.config._attn_implementation, bfloat16=bfloat16)


def attends_apart(model: PreTrainedModel, *, bfloat16: bool = False) -> bool:
    """Whether a model gives the same logits with attention that needs no mask. If so, that attention is set."""
    own = model.config._attn_implementation
    if own == PACKED:
        return True
    if not can_attend_apart(model.config):
        return False
    try:
        check_isolation(model, PACKED, bfloat16=bfloat16)
    except ConfigError:
        model.set_attn_implementation(own)
        return False
    return True


def check_isolation(model: PreTrainedModel, packed: str, *, bfloat16: bool = False) -> None:
    """Raises ConfigError unless the logits of conversations in one row, with attention `packed`, are those of each by
    itself with the model's own, and leaves that attention set. `bfloat16` says that the model multiplies in it."""
    kernel = str(model.config._attn_implementation)
    if kernel not in KERNELS:
        raise _refusal(model, f"attention {kernel} would mix them")
    rounded = bfloat16 or getattr(model, "is_quantized", False)
    tolerance = ROUNDED if rounded else TOLERANCE
    was_training = model.training
    model.eval()
    try:
        difference, scale = _difference(model, packed)
    except TypeError as error:
        raise _refusal(model, "it takes no positions") from error
    finally:
        model.train(was_training)
    if not difference <= tolerance * scale:  # true for NaN too
        raise _refusal(model, f"logits differ by {difference:.1e} from those of each by itself")


@torch.no_grad()
def _difference(model: PreTrainedModel, packed: str) -> tuple[float, float]:
    """The largest difference of a logit from that of the conversation by itself, and the largest logit."""
    generator = torch.Generator().manual_seed(0)
    vocabulary = model.get_input_embeddings().num_embeddings
    ids_BT = torch.randint(vocabulary, (len(LENGTHS), sum(LENGTHS[0])), generator=generator).to(model.device)
    positions_BT = torch.stack([torch.cat([torch.arange(length) for length in row]) for row in LENGTHS])
    places = [
        (number, slice(sum(row[:before]), sum(row[: before + 1])))
        for number, row in enumerate(LENGTHS)
        for before in range(len(row))
    ]
    alone = [model(input_ids=ids_BT[number : number + 1, span], use_cache=False).logits[0] for number, span in places]
    model.set_attn_implementation(packed)
    together = model(input_ids=ids_BT, position_ids=positions_BT.to(model.device), use_cache=False).logits
    difference = max(
        float((together[number, span] - logits).abs().max())
        for (number, span), logits in zip(places, alone, strict=True)
    )
    return difference, max(float(logits.abs().max()) for logits in alone)


def _refusal(model: PreTrainedModel, why: str) -> ConfigError:
    return ConfigError(
        f"runtime.posttrain.packing is on, but {model.config.model_type} can't keep conversations in one row "
        f"apart: {why}.",
        "Set it to false.",
    )
