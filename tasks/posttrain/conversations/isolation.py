"""Whether a model keeps conversations in one row apart, asked of the model itself.

What keeps them apart are positions that begin anew, and a model must heed these both in its positions and in its
attention. Llama, Mistral, Qwen 3, Gemma and GPT-2 do. Others take no notice and say nothing, such as Bloom, OPT and
Falcon, or have a memory besides attention, such as Mamba; so none is taken at its word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from storage.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LENGTHS = ((5, 8), (9, 4))  # conversations of two rows: one row alone would be a case of its own to some kernels
TOLERANCE, ROUNDED = 1e-4, 5e-2  # of the largest logit; the second where a model in 4 bits multiplies in 16
KERNELS = ("sdpa", "eager")  # others derive documents from the positions themselves, of a single row only


def check_isolation(model: PreTrainedModel) -> None:
    """Raises ConfigError unless the logits of conversations in one row are those of each alone."""
    kernel = str(model.config._attn_implementation)
    if kernel not in KERNELS:
        raise _refused(model, f"attention {kernel} would mix them")
    tolerance = ROUNDED if getattr(model, "is_quantized", False) else TOLERANCE
    was_training = model.training
    model.eval()
    try:
        difference, scale = _difference(model)
    except TypeError as error:
        raise _refused(model, "it takes no positions") from error
    finally:
        model.train(was_training)
    if not difference <= tolerance * scale:  # nor NaN
        raise _refused(model, f"logits differ by {difference:.1e} from those of each alone")


@torch.no_grad()
def _difference(model: PreTrainedModel) -> tuple[float, float]:
    """The largest difference of a logit from that of the conversation alone, and the largest logit."""
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


def _refused(model: PreTrainedModel, why: str) -> ConfigError:
    return ConfigError(
        f"runtime.posttrain.packing is on, but {model.config.model_type} can't keep conversations in one row "
        f"apart: {why}.",
        "Turn it off.",
    )
