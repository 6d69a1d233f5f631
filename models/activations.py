"""Activation memory: exactly the bytes that the forward pass saves for the backward pass, as a test of storages checks.

This is the accounting of Korthikanti et al. 2022 (section 4) for this decoder. Attention is fused, so its scores are
never materialised. q, k and v come from one product, so that v keeps all of it alive beside the rotated q and k. The
model is without dropout. The loss saves gradients instead of logits: `ChunkedCrossEntropy` has them when the forward
pass ends.

Matrix products and the residual stream may have numbers of different size: under autocast, sums with the float32
embeddings stay float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from models.presets import (
    LOGITS_ALIGNED,
    LOSS_CHUNK,
    LOSS_CHUNK_CUDA,
    ModelShape,
    Recompute,
    block_matrices,
    fits_flash,
)

Precision = Literal["float32", "bfloat16", "float16", "mixed"]  # mixed: 16-bit products, float32 weights or masters


@dataclass(frozen=True)
class Numbers:
    """Sizes of the numbers in the forward pass."""

    product: int  # bytes per number in matrix products
    residual: int  # bytes per number in the residual stream, and in the weights that autograd sees
    cuda: bool  # RMSNorm is one kernel on CUDA. Elsewhere torch composes it, and saves intermediates

    @property
    def autocast(self) -> bool:
        """Whether float32 weights are cast to 16 bits for matrix products."""
        return self.product != self.residual


def numbers(precision: Precision, *, autocast: bool, cuda: bool) -> Numbers:
    """The sizes for a precision. `autocast` is mixed precision over float32 weights (DDP). Otherwise weights are cast
    before."""
    if precision == "float32":
        return Numbers(4, 4, cuda)
    return Numbers(2, 4 if precision == "mixed" and autocast else 2, cuda)


def skips_hidden(shape: ModelShape, form: Numbers) -> bool:
    """Whether attention skips what documents and windows hide, without a mask: on an NVIDIA GPU in 16 bits
    (`models/kernels/attention.py`)."""
    return form.cuda and form.product == 2 and fits_flash(shape.head_dim)


@dataclass(frozen=True)
class Activations:
    """Bytes on one device. The blocks keep theirs until their backward pass, and one of the other two is added."""

    blocks: int
    loss: int  # while the loss is computed: the last norm, the head's gradient, a chunk of logits
    backward: int  # during a block's backward pass: recomputed activations, and gradients

    @property
    def peak(self) -> int:
        """Peak bytes."""
        return self.blocks + max(self.loss, self.backward)


def activations(
    shape: ModelShape,
    form: Numbers,
    *,
    micro_batch: int,
    recompute: Recompute = "none",
    tensor_parallel: int = 1,
    context_parallel: int = 1,
    blocks: int | None = None,
    in_flight: int = 1,
    head: bool = True,
    isolate: bool = False,
    compiled: bool = False,
) -> Activations:
    """Activation memory of `micro_batch` sequences of full context.

    This device has `blocks` of the model (default: all), with or without the `head`. `in_flight` micro-batches wait for
    their backward pass (pipeline parallelism). Tensor parallelism divides activations between a column-parallel and a
    row-parallel layer, and the vocabulary, while norms and the residual stream are replicated (Shoeybi et al. 2019).
    Context parallelism divides tokens, except in masks and positions. With `isolate` (isolated documents) each row has
    its own mask, if attention needs one. A `compiled` block without recomputation saves less, as torch's compiler
    recomputes SiLU and the cast of a block's output.
    """
    tokens, ways = ceil_div(micro_batch * shape.context, context_parallel), tensor_parallel
    blocks = shape.depth if blocks is None else blocks
    masked = (isolate or shape.windowed > 0) and not skips_hidden(shape, form)
    block = _block(shape, form, ways, repeated=form.cuda and (masked or form.product == 4))
    cheap = _recomputed_anyway(shape, form, ways) if compiled else 0
    saved = {"none": block - cheap, "selective": _selective(shape, form, ways), "full": form.residual * shape.width}[
        recompute
    ]
    # One for all layers, or one for each kind. Layers that see whole rows need none
    kinds = (shape.windowed > 0) + (isolate and shape.windowed < shape.depth)
    mask = form.product * shape.context**2 * (micro_batch if isolate else 1) * kinds if masked else 0
    bases = {shape.sight(layer)[:2] for layer in range(shape.depth)} - {(None, None)}
    angles = shape.head_dim * len(bases)
    rotary = form.residual * shape.context * angles * (micro_batch if isolate else 1)
    casts = 2 * ceil_div(block_matrices(shape), ways) if form.autocast else 0
    kept = tokens * saved * blocks + mask + rotary + (casts * blocks if recompute == "none" else 0)
    loss = 0
    if head:
        # Autocast caches its casts until the forward pass ends, even if the backward pass doesn't need them. Those of
        # experts aren't among them
        experts = 2 * 3 * shape.width * shape.all_feed_forward if shape.experts and form.autocast else 0
        held = 0 if recompute == "none" else (casts - experts) * blocks
        # What the last norm saves, its output, and the gradient of the loss with respect to it
        last = tokens * (_norm(shape, form) + 2 * form.residual * shape.width)
        loss = last + held + _loss(shape, form, tokens, ways)
    again = 0 if recompute == "none" else tokens * (block - saved) + casts
    return Activations(kept * in_flight, loss, again + _flowing(shape, form, tokens, ways, head))


def _flowing(shape: ModelShape, form: Numbers, tokens: int, ways: int, head: bool) -> int:
    """The peak of activation gradients in a feed-forward layer's backward pass: of the residual stream, of the inner
    activations (both halves of a gated layer, or one beside a matrix's gradient before it is accumulated), and of a
    tied head, which waits for the embedding's."""
    inner = ceil_div(shape.feed_forward, ways)
    tied = vocabulary_of_rank(shape, ways) * shape.width if shape.tie_embeddings and head else 0
    stream = form.residual * shape.width + (form.product * shape.width if form.autocast else 0)
    at_down = tokens * (form.product * inner + stream) + form.residual * inner * shape.width
    at_gate = tokens * (form.product * 2 * inner + form.residual * shape.width) if shape.gated else 0
    if shape.experts:
        at_down, at_gate = (
            tokens * (form.product * wide * inner + stream)
            + form.residual * wide * shape.all_feed_forward * shape.width
            for wide in (1, 2)
        )
    if not shape.post_norms:
        return max(at_down, at_gate) + form.residual * tied
    # The norm after the layer goes first, and its numbers are then free. Composed, it has five in float32 at a time
    at_norm = tokens * ((0 if form.cuda else 5 * 4 * shape.width) + stream)
    freed = tokens * _norm(shape, form)
    return max(at_norm, at_gate - freed, at_down + tokens * form.product * shape.width - freed) + form.residual * tied


def _block(shape: ModelShape, form: Numbers, ways: int, *, repeated: bool) -> int:
    """Bytes per token that a block saves without recomputation. `repeated` says that shared keys and values are copied
    for each query head (`must_repeat_keys`), so that the product they came from is freed."""
    queries, keys = _heads(shape, ways)
    rotated = queries + keys if shape.rope_theta is not None else 0
    copied = repeated and keys < queries
    attended = 2 * queries if copied else queries + 2 * keys
    attention = form.product * (attended + rotated + queries) + 4 * ceil_div(shape.heads, ways)
    attention += _head_norms(shape, form, ways, keep_product=copied)
    inner = ceil_div(shape.feed_forward, ways)
    feed_forward = form.product * inner * (4 if shape.gated else 2)  # gate, up, SiLU(gate), and their product
    before = 2 * _norm(shape, form) if shape.pre_norms else 0
    after = 2 * _norm(shape, form) if shape.post_norms else 0
    norms = before + after + 2 * form.product * shape.width
    return norms + attention + feed_forward + _routing(shape, form)


def _to_experts(shape: ModelShape) -> int:
    """Numbers per token in the rows that its experts take."""
    return (shape.experts_per_token or 0) * shape.width


def _routing(shape: ModelShape, form: Numbers) -> int:
    """Bytes per token that a mixture saves beside its experts' inner activations: the rows that go to experts and come
    back, logits, softmax, its largest values and their sum, log Σ exp, the weights, and indices (of experts, and of
    rows in both orders). In 16 bits the router saves its input in float32, and the norm's output isn't saved."""
    if not shape.experts or not shape.experts_per_token:
        return 0
    rows = form.product * 2 * _to_experts(shape)
    indices = 3 * 8 * shape.experts_per_token
    values = 4 * (2 * shape.experts + shape.experts_per_token + 2) + form.product * shape.experts_per_token
    return rows + indices + values + (4 - form.product) * shape.width


def _head_norms(shape: ModelShape, form: Numbers, ways: int, *, keep_product: bool) -> int:
    """Bytes per token that the norms of queries and keys save. Their input is in the product of queries, keys and
    values, which they may `keep_product` from being freed."""
    if not shape.head_norms:
        return 0
    queries, keys = _heads(shape, ways)
    each = ceil_div(shape.heads, ways) + ceil_div(shape.kv_heads, ways)
    statistics = 4 * (2 if shape.joint_norms else each)
    product = form.product * (queries + 2 * keys) if keep_product else 0
    copies = 0 if form.cuda else 4 * (1 if form.product == 4 else 2) * (queries + keys)  # as in `_norm`
    return statistics + product + copies


def _recomputed_anyway(shape: ModelShape, form: Numbers, ways: int) -> int:
    """Bytes per token that a compiled block does not save, as a test counts them. With them plans are within 0.5 % of
    an H200's measured memory for models of 124M to 1.3B (benchmarks/RESULTS.md)."""
    inner = ceil_div(shape.feed_forward, ways) if shape.gated else 0
    return form.product * (inner + (shape.width if form.autocast else 0))


def _selective(shape: ModelShape, form: Numbers, ways: int) -> int:
    """Bytes per token that a block saves with selective recomputation: its input, products, attention's output."""
    queries, keys = _heads(shape, ways)
    inner = ceil_div(shape.feed_forward, ways) * (2 if shape.gated else 1)
    products = queries + 2 * keys + queries + shape.width + inner + (_to_experts(shape) or shape.width)
    logits = 4 * (shape.experts or 0)
    return form.residual * shape.width + form.product * products + 4 * ceil_div(shape.heads, ways) + logits


def _norm(shape: ModelShape, form: Numbers) -> int:
    """Bytes per token that a norm saves, without its output."""
    if shape.family == "gpt2":
        return form.residual * shape.width + 2 * 4  # mean and reciprocal standard deviation in float32
    if form.cuda:
        return form.residual * shape.width + 4
    return 2 * 4 * shape.width + 4  # the input and the scaled input, in float32 whatever the input was


def _loss(shape: ModelShape, form: Numbers, tokens: int, ways: int) -> int:
    """The peak of the chunked loss: the head's gradient in float32, a chunk's logits, and a product of the chunk with
    the head. In 16 bits under autocast, also copies of the head and the chunk's hidden states. On a CPU, which neither
    fuses kernels nor adds products to float32, also the chunk's logits in float32, or a product of the head's size."""
    vocabulary = vocabulary_of_rank(shape, ways)
    rows = min(LOSS_CHUNK_CUDA if form.cuda and form.product == 2 else LOSS_CHUNK, tokens)
    head, hidden = vocabulary * shape.width, rows * shape.width
    if form.product == 4:
        return 4 * (head + rows * vocabulary + hidden)
    logits = rows * ceil_div(vocabulary, LOGITS_ALIGNED) * LOGITS_ALIGNED
    casts = 2 * (head + hidden) if form.autocast else 0
    between = 2 * hidden if form.cuda else max(2 * hidden, 2 * head, 4 * rows * vocabulary)
    return 4 * head + 2 * logits + casts + between


def _heads(shape: ModelShape, ways: int) -> tuple[int, int]:
    """Width of the queries, and of the keys, on one device."""
    return shape.head_dim * ceil_div(shape.heads, ways), shape.head_dim * ceil_div(shape.kv_heads, ways)


def vocabulary_of_rank(shape: ModelShape, ways: int) -> int:
    """Vocabulary entries on one device: all of them if they can't be divided evenly."""
    return shape.vocab_size if shape.vocab_size % ways else shape.vocab_size // ways


def ceil_div(number: int, ways: int) -> int:
    """`number` divided by `ways`, rounded up: the largest share."""
    return -(-number // ways)
