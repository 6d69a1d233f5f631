"""Can the model learn? Its first loss, its gradients, the causal mask, and whether it can overfit one batch.

Shapes: B rows, T tokens, V vocabulary.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from models.presets import ModelShape
from models.transformer import INIT_STD, Transformer
from tasks.checks.check import Check, verdict
from tasks.pretrain.engines import Engine, MicroBatch
from tasks.pretrain.preflight.bench import Bench

TOLERANCE = 0.05  # of the first loss
MEMORISED = 0.1  # share of the first loss at which a batch counts as memorised
LONGEST, WARMUP = 200, 8  # steps. With a good learning rate two dozen suffice
CAUSAL_TOLERANCE = 1e-4  # of a logit, as products over other rows may be rounded differently


def first_loss(bench: Bench) -> Check:
    """Check that an untrained model gives all tokens the same probability."""
    ids_BT, targets_BT, _ = bench.batches[0]
    return judge_first_loss(float(bench.engine.loss(ids_BT, targets_BT)), bench.small.own_shape)


def judge_first_loss(loss: float, shape: ModelShape) -> Check:
    """Judge a first loss: ln V within 5 %. An untrained model's logits have the variance σ² = 0.02² × width, which adds
    at most σ²/2."""
    expected, spread = math.log(shape.vocab_size), INIT_STD**2 * shape.width / 2
    good = (1 - TOLERANCE) * expected <= loss <= (1 + TOLERANCE) * (expected + spread)
    return verdict(
        "first loss",
        good,
        f"{loss:.3f} nats a token, ln({shape.vocab_size:,}) = {expected:.3f}",
        "The initial weights have the wrong scale, or targets don't match inputs: look at what changed in models/.",
    )


def gradients(bench: Bench) -> Check:
    """Check that the loss reaches every parameter."""
    return judge_gradients(bench.model, bench.batches[0], bench.depth)


def judge_gradients(model: nn.Module, batch: MicroBatch, depth: str = "") -> Check:
    """Judge gradients: each parameter needs one that is finite and not all zero."""
    model.zero_grad()
    model(*batch).backward()
    wrong = []
    parameters = list(model.named_parameters())
    for name, parameter in parameters:
        norm = None if parameter.grad is None else float(parameter.grad.norm())
        if norm is None or norm == 0:
            wrong.append(f"{name} has {'none' if norm is None else 'zeros'}")
        elif not math.isfinite(norm):
            wrong.append(f"{name} has {norm}")
    model.zero_grad()
    more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
    return verdict(
        "gradients",
        not wrong,
        "; ".join(wrong[:3]) + more if wrong else f"finite and nonzero for all {len(parameters)} parameters{depth}",
        "A parameter without gradient never learns: look for what detaches it in models/.",
    )


def causality(bench: Bench) -> Check:
    """Check that a token sees neither later tokens nor, with isolated documents, those of other documents."""
    return judge_causality(bench.model, bench.batches[0], bench.depth)


@torch.no_grad()
def judge_causality(model: Transformer, batch: MicroBatch, depth: str = "") -> Check:
    """Change one token: logits before it must stay the same, and those from it on must change."""
    ids_T, _, positions_BT = batch[0][0], batch[1], batch[2]
    tokens = len(ids_T)
    places = sorted({tokens // 4, tokens // 2, tokens - 1} - {0})
    changed_BT = ids_T.repeat(len(places) + 1, 1)
    for row, place in enumerate(places, 1):
        changed_BT[row, place] = (changed_BT[row, place] + 1) % model.shape.vocab_size
    positions_BT = None if positions_BT is None else positions_BT[:1].expand(len(changed_BT), -1)
    logits_BTV = model(changed_BT, None, positions_BT).float()
    leaked, blind = 0.0, []
    for row, place in enumerate(places, 1):
        difference_T = (logits_BTV[row] - logits_BTV[0]).abs().amax(-1)
        leaked = max(leaked, float(difference_T[:place].max()))
        if float(difference_T[place]) <= CAUSAL_TOLERANCE:
            blind.append(place)
    good = leaked <= CAUSAL_TOLERANCE and not blind
    value = f"a later token changes an earlier logit by at most {leaked:.1e}{depth}"
    if blind:
        value = f"changing token {blind[0]} leaves all logits from there on unchanged"
    return verdict("causality", good, value, "The attention mask is wrong: look at what changed in models/.")


def overfit(bench: Bench) -> Check:
    """Check that the run's own engine, optimizer and peak learning rate can overfit one small batch."""
    return judge_overfit(bench.engine, bench.batches, bench.depth)


def judge_overfit(engine: Engine, batches: list[MicroBatch], depth: str = "") -> Check:
    """Judge overfitting: the loss on the same few hundred tokens must fall to a tenth within LONGEST steps."""
    peak = engine.config.learning_rate
    losses: list[float] = []
    for step in range(1, LONGEST + 1):
        loss, _ = engine.step(batches, peak * min(1.0, step / WARMUP))
        losses.append(float(engine.world.mean(loss.clone())))
        if losses[-1] <= MEMORISED * losses[0] or not math.isfinite(losses[-1]):
            break
    tokens = sum(ids_BT.numel() for ids_BT, _, _ in batches)
    return verdict(
        "overfit one batch",
        losses[-1] <= MEMORISED * losses[0],
        f"{tokens} tokens: loss {losses[0]:.2f} → {losses[-1]:.2f} in {len(losses)} steps{depth}",
        "Lower pretrain.learning_rate, and muon_learning_rate if set, or raise them if the loss hardly moved. Check "
        "the optimizer's settings.",
    )
