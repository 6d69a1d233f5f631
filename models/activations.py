"""What the forward pass keeps for the backward pass, bytes exactly as torch keeps them; a test counts its storages.

The accounting is Korthikanti et al. 2022 (section 4) for this repo's decoder: attention is fused, so its scores never
exist; q, k and v come from one product, so that v keeps the whole of it alive beside the rotated q and k; there is no
dropout. The loss keeps no logits (`ChunkedCrossEntropy`), but has its gradients ready when the forward pass ends.

Two sizes of number stand in the formulas: `n` bytes for what matrix products read and write, `r` bytes for the
residual stream; they differ only under autocast, where sums with the float32 embeddings stay float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from models.presets import LOSS_CHUNK, ModelShape, Recompute, block_matrices

Precision = Literal["float32", "bfloat16", "float16", "mixed"]  # mixed: 16-bit products, float32 weights or masters


@dataclass(frozen=True)
class Numbers:
    """How the numbers of the forward pass are kept."""

    product: int  # bytes of a number in a matrix product
    residual: int  # bytes of a number in the residual stream, and in the weights that autograd sees
    cuda: bool  # RMSNorm is one kernel there; elsewhere torch composes it, and keeps what lies between

    @property
    def autocast(self) -> bool:
        """Whether float32 weights are cast to 16 bits where they multiply."""
        return self.product != self.residual


def numbers(precision: Precision, *, autocast: bool, cuda: bool) -> Numbers:
    """Sizes for a precision; `autocast` is mixed precision over float32 weights (DDP), else weights are cast before."""
    if precision == "float32":
        return Numbers(4, 4, cuda)
    return Numbers(2, 4 if precision == "mixed" and autocast else 2, cuda)


@dataclass(frozen=True)
class Activations:
    """Bytes on one device. The blocks' stay until their backward pass; either of the other two comes on top."""

    blocks: int
    loss: int  # while the loss is computed: the last norm, the head's gradient, a chunk of logits
    backward: int  # while a block's backward pass runs: what it computes again, and gradients

    @property
    def peak(self) -> int:
        """The most that exists at a time, bytes."""
        return self.blocks + max(self.loss, self.backward)


def activations(
    shape: ModelShape,
    form: Numbers,
    *,
    micro_batch: int,
    recompute: Recompute = "none",
    tensor_parallel: int = 1,
    blocks: int | None = None,
    in_flight: int = 1,
    head: bool = True,
    isolate: bool = False,
) -> Activations:
    """What `micro_batch` sequences of a full context need.

    `blocks` of the model stand on this device (all of them by default), with the `head` or without; `in_flight`
    micro-batches wait for their backward pass (pipeline parallelism). Tensor parallelism divides what lies between a
    column-parallel and a row-parallel product, and the vocabulary; norms and the residual stream are whole (Shoeybi
    et al. 2019). `isolate` is for documents that don't see each other: each row has its own mask.
    """
    tokens, ways = micro_batch * shape.context, tensor_parallel
    blocks = shape.depth if blocks is None else blocks
    masked = isolate or (shape.sliding_window is not None and shape.sliding_window < shape.context)
    block = _block(shape, form, ways, repeated=form.cuda and (masked or form.product == 4))
    saved = {"none": block, "selective": _selective(shape, form, ways), "full": form.residual * shape.width}[recompute]
    mask = form.product * shape.context**2 * (micro_batch if isolate else 1) if masked else 0
    rotary = form.residual * shape.context * shape.head_dim if shape.rope_theta is not None else 0
    casts = 2 * ceil_div(block_matrices(shape), ways) if form.autocast else 0
    kept = tokens * saved * blocks + mask + rotary + (casts * blocks if recompute == "none" else 0)
    loss = 0
    if head:
        # Autocast holds on to its casts until the forward pass ends, whether they are kept for the backward or not
        held = 0 if recompute == "none" else casts * blocks
        # The last norm's numbers, its output, and the loss's gradient with respect to that
        last = tokens * (_norm(shape, form) + 2 * form.residual * shape.width)
        loss = last + held + _loss(shape, form, tokens, ways)
    again = 0 if recompute == "none" else tokens * (block - saved) + casts
    return Activations(kept * in_flight, loss, again + _flowing(shape, form, tokens, ways, head))


def _flowing(shape: ModelShape, form: Numbers, tokens: int, ways: int, head: bool) -> int:
    """Gradients that exist at a time in a feed-forward layer's backward pass, beside the parameters' own: that of the
    residual stream, of the inner numbers (both of a gate's at its product, else one beside a matrix's before it is
    added up), and of a tied head, which waits for the embedding's."""
    inner = ceil_div(shape.feed_forward, ways)
    tied = words_of_rank(shape, ways) * shape.width if shape.tie_embeddings and head else 0
    stream = form.residual * shape.width + (form.product * shape.width if form.autocast else 0)
    at_down = tokens * (form.product * inner + stream) + form.residual * inner * shape.width
    at_gate = tokens * (form.product * 2 * inner + form.residual * shape.width) if shape.gated else 0
    return max(at_down, at_gate) + form.residual * tied


def _block(shape: ModelShape, form: Numbers, ways: int, *, repeated: bool) -> int:
    """Bytes a token that a block keeps when nothing is computed again. `repeated`: shared keys and values are copied
    for each query head (`must_repeat_keys`), so that nothing holds on to the product that they came from."""
    queries, keys = _heads(shape, ways)
    rotated = queries + keys if shape.rope_theta is not None else 0
    attended = 2 * queries if repeated and keys < queries else queries + 2 * keys
    attention = form.product * (attended + rotated + queries) + 4 * ceil_div(shape.heads, ways)
    inner = ceil_div(shape.feed_forward, ways)
    feed_forward = form.product * inner * (4 if shape.gated else 2)  # gate, up, SiLU of the gate, and the product
    norms = 2 * (_norm(shape, form) + form.product * shape.width)
    return norms + attention + feed_forward


def _selective(shape: ModelShape, form: Numbers, ways: int) -> int:
    """Bytes a token that a block keeps with selective recomputation: its input, each product, attention's output."""
    queries, keys = _heads(shape, ways)
    inner = ceil_div(shape.feed_forward, ways) * (2 if shape.gated else 1)
    products = queries + 2 * keys + queries + shape.width + inner + shape.width
    return form.residual * shape.width + form.product * products + 4 * ceil_div(shape.heads, ways)


def _norm(shape: ModelShape, form: Numbers) -> int:
    """Bytes a token that a norm keeps, its output left out."""
    if shape.family == "gpt2":
        return form.residual * shape.width + 2 * 4  # mean and reciprocal deviation in float32
    if form.cuda:
        return form.residual * shape.width + 4
    return 2 * 4 * shape.width + 4  # the input and the scaled input, in float32 whatever the input was


def _loss(shape: ModelShape, form: Numbers, tokens: int, ways: int) -> int:
    """The most that the chunked loss has at a time: the head's gradient and a chunk's logits in float32, and with them
    a product of the chunk with the head; or in 16 bits the logits and the hidden states of the chunk once more, with a
    product of the head's size."""
    vocabulary, rows = words_of_rank(shape, ways), min(LOSS_CHUNK, tokens)
    head, logits, hidden = vocabulary * shape.width, rows * vocabulary, rows * shape.width
    if form.product == 4:
        return 4 * (head + logits + hidden)
    cast = 2 * head if form.autocast else 0  # of the head
    return 4 * (head + logits) + 2 * (logits + hidden + head) + cast


def _heads(shape: ModelShape, ways: int) -> tuple[int, int]:
    """Width of the queries, and of the keys, on one device."""
    return shape.head_dim * ceil_div(shape.heads, ways), shape.head_dim * ceil_div(shape.kv_heads, ways)


def words_of_rank(shape: ModelShape, ways: int) -> int:
    """Words of the vocabulary on one device: whole where it can't be shared evenly."""
    return shape.vocab_size if shape.vocab_size % ways else shape.vocab_size // ways


def ceil_div(number: int, ways: int) -> int:
    """`number` shared out in `ways`, rounded up: the largest share."""
    return -(-number // ways)
