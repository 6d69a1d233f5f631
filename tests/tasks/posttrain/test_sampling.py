"""Sampled answers follow the model's distribution and depend on their seeds only."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from models.conversation import render
from models.pretrained import load_pretrained
from models.runtimes.greedy import ends_of
from models.tokenizer import load_tokenizer
from storage.errors import OutOfMemory
from tasks.posttrain.rollouts.sampling import ByNumbers, numbers_of, sample, seed_of
from tests.tasks.tiny_model import ANIMALS, make_model, question

PROMPTS = [question(animal, number) for number, animal in enumerate(ANIMALS)]
SEEDS = [seed_of(f"0 1 {place}") for place in range(len(PROMPTS))]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    folder = make_model(tmp_path_factory.mktemp("base") / "model")
    return load_pretrained(folder), load_tokenizer(folder)


def sampled(model: tuple[Any, Any], order: list[int], learned: int = 16, **settings: float) -> list[list[int]]:
    prompts, seeds = [PROMPTS[place] for place in order], [SEEDS[place] for place in order]
    settings = {"temperature": 0.7, **settings}
    rendered = [render(model[1], prompt, add_generation_prompt=True)["input_ids"] for prompt in prompts]
    return sample(*model, rendered, seeds, ends_of(*model), 6, learned=learned, **settings)


def test_tokens_are_as_frequent_as_they_are_probable() -> None:
    rows, logits = 5_000, torch.tensor([0.5, -torch.inf, 2.0, 1.0])
    numbers = torch.stack([numbers_of(row, 2) for row in range(rows)])
    scores = ByNumbers(numbers, 3, 0.5)(torch.zeros(rows, 4, dtype=torch.int64), logits.expand(rows, -1))
    found = scores.argmax(-1).bincount(minlength=4) / rows
    torch.testing.assert_close(found, (logits / 0.5).softmax(-1), rtol=0, atol=0.02)
    edge = ByNumbers(torch.tensor([[1 - 2**-53], [0.0]], dtype=torch.float64), 0, 1.0)
    assert edge(torch.zeros(2, 0), torch.tensor([[-torch.inf, 1.0, -torch.inf]] * 2)).argmax(-1).tolist() == [1, 1]


def test_answers_are_the_same_beside_others_and_without_a_bases_own_settings(model: tuple[Any, Any]) -> None:
    every = list(range(len(PROMPTS)))
    whole = sampled(model, every)
    assert len({tuple(ids) for ids in whole}) == len(whole)
    assert sampled(model, every, learned=1) == whole
    assert sampled(model, every[::-3]) == whole[::-3]
    assert sampled(model, every, temperature=1.5) != whole
    before = model[0].generation_config
    before.repetition_penalty = 9.0
    assert sampled(model, every) == whole
    assert model[0].generation_config is before


def test_if_memory_runs_out_they_are_sampled_in_smaller_batches(
    model: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, generate = sampled(model, list(range(10))), model[0].generate

    def fits(most: int) -> Any:
        def limited(input_ids: Any, **given: Any) -> Any:
            if len(input_ids) > most:
                raise torch.OutOfMemoryError
            return generate(input_ids=input_ids, **given)

        return limited

    monkeypatch.setattr(model[0], "generate", fits(3))
    assert sampled(model, list(range(10))) == whole
    monkeypatch.setattr(model[0], "generate", fits(0))
    with pytest.raises(OutOfMemory, match="Memory runs out when one answer is sampled"):
        sampled(model, [0])
