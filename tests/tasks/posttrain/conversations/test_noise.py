"""NEFTune's noise depends on the seed and on the conversation's place in the training, and on nothing else."""

from __future__ import annotations

import math

import torch
from torch import nn
from transformers.integrations.neftune import neftune_post_forward_hook

from tasks.posttrain.conversations.noise import EmbeddingNoise

WIDTH, ALPHA = 48, 5.0


def test_a_conversation_has_its_noise_wherever_it_lies() -> None:
    noise = EmbeddingNoise(nn.Embedding(10, WIDTH), ALPHA, seed=1)
    packed = noise.of([[(7, 20), (3, 9)], [(5, 11)]], torch.zeros(2, 29, WIDTH))
    alone = noise.of([[(3, 9)]], torch.zeros(1, 12, WIDTH))
    assert torch.equal(packed[0, 20:29], alone[0, :9])
    assert not alone[0, 9:].any()
    assert not packed[1, 11:].any()
    alike = noise.of([[(3, 9), (7, 9)]], torch.zeros(1, 18, WIDTH))
    assert not torch.equal(alike[0, :9], alike[0, 9:]), "another place, of the same length"
    other = EmbeddingNoise(nn.Embedding(10, WIDTH), ALPHA, seed=2).of([[(3, 9)]], torch.zeros(1, 9, WIDTH))
    assert not torch.equal(other[0], alone[0, :9])


def test_it_is_as_strong_as_that_of_transformers_and_absent_from_validation() -> None:
    embedding, length = nn.Embedding(10, WIDTH), 400
    noise = EmbeddingNoise(embedding, ALPHA, seed=0)
    noise.segments = [[(0, length)]]
    ids = torch.zeros((1, length), dtype=torch.long)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    drawn = embedding(ids) - embedding.weight[0]
    assert torch.equal(torch.get_rng_state(), before), "the global generator, which dropout uses, is untouched"
    theirs = nn.Embedding(10, WIDTH)
    theirs.neftune_noise_alpha = ALPHA  # type: ignore[assignment]
    theirs.register_forward_hook(neftune_post_forward_hook)
    reference = theirs(ids) - theirs.weight[0]
    bound = ALPHA / math.sqrt(length * WIDTH)
    for found in (drawn, reference):
        assert 0.99 * bound < float(found.abs().max()) <= 1.001 * bound
        assert abs(float(found.std()) - bound / math.sqrt(3)) < 0.01 * bound
    embedding.eval()
    assert torch.equal(embedding(ids), embedding.weight[0].expand(1, length, WIDTH))
