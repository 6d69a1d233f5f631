"""Many sequences in one row: each is computed as if it were the only one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)

from models.tokenizer import load_tokenizer
from tasks.evaluate.score.forward.packed import Row, rows_of
from tasks.evaluate.score.model import PackedModel
from tests.tasks.tiny_model import make_model

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
CONTEXT = 48
sequences = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=20)


@given(sequences, st.integers(1, 30))
def test_each_sequence_stands_in_one_row_and_sees_itself_alone(given: list[list[int]], most: int) -> None:
    rows = list(rows_of(given, most))
    assert sorted(number for row in rows for number in row.paths) == list(range(len(given)))
    for row in rows:
        assert len(row.ids) <= max(most, max(len(given[number]) for number in row.paths))
        mask = row.mask()
        for number, path in row.paths.items():
            assert [row.ids[node] for node in path] == given[number]
            assert [row.depths[node] for node in path] == list(range(len(path)))
            for depth, node in enumerate(path):
                assert np.flatnonzero(mask[node]).tolist() == path[: depth + 1]


@given(sequences, st.integers(1, 30), st.integers(1, 30))
def test_a_row_grows_on_by_what_is_related_alone(given: list[list[int]], most: int, unrelated: int) -> None:
    rows = list(rows_of(given, most, unrelated))
    assert sorted(number for row in rows for number in row.paths) == list(range(len(given)))
    for row in rows:
        size = 0
        for path in row.paths.values():
            shared = sum(node < size for node in path)
            grown = size + len(path) - shared
            if size:
                assert grown <= most
                assert grown <= unrelated or shared >= len(path) / 4
            size = grown


@given(sequences)
def test_what_sequences_begin_with_in_common_is_there_once(given: list[list[int]]) -> None:
    (row,) = rows_of(given, 10_000)
    beginnings = {tuple(sequence[: end + 1]) for sequence in given for end in range(len(sequence))}
    assert len(row.ids) == len(beginnings)


def test_a_row_of_two_choices_by_hand() -> None:
    row = next(rows_of([[5, 6, 7], [5, 6, 8, 9]], 10))
    assert row == Row([5, 6, 7, 8, 9], [0, 1, 2, 2, 3], [5, 5, 3, 5, 5], {0: [0, 1, 2], 1: [0, 1, 3, 4]})


def models(folder: Path) -> dict[str, PreTrainedModel]:
    vocab = len(load_tokenizer(folder))
    torch.manual_seed(0)
    shape = {**SIZES, "vocab_size": vocab, "max_position_embeddings": CONTEXT}
    gpt2 = GPT2Config(vocab_size=vocab, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=4)
    return {
        "llama": LlamaForCausalLM(LlamaConfig(**shape)).eval(),
        "gpt2": GPT2LMHeadModel(gpt2).eval(),
        "mistral": MistralForCausalLM(MistralConfig(**shape, sliding_window=8)).eval(),
    }


Asked = list[tuple[tuple[str, str] | None, list[int], list[int]]]


def requests(vocab: int) -> Asked:
    """Choices of the same text, shared examples, one longer than the context, single tokens, one repeated."""
    draw = np.random.default_rng(1)

    def some(length: int) -> list[int]:
        return draw.integers(0, vocab, length).tolist()  # type: ignore[no-any-return]

    examples = some(14)
    found: Asked = []
    for _ in range(8):
        question = examples + some(int(draw.integers(1, 12)))
        found += [(("", ""), question, some(int(draw.integers(1, 9)))) for _ in range(4)]
    found += [(("", ""), some(CONTEXT + 20), some(5)), (("", ""), some(CONTEXT - 3), some(6)), (None, some(1), some(1))]
    return [*found, found[0]]


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mistral"])
def test_likelihoods_are_the_harnesss_own(
    kind: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("model")
    make_model(folder)
    tokenizer, model = load_tokenizer(folder), models(folder)[kind]
    asked = requests(len(tokenizer))
    packed = PackedModel(model, tokenizer, batch_size=4)
    expected = packed._padded(asked)
    rows = spy(packed, monkeypatch)
    found = packed._loglikelihood_tokens(asked)
    for (value, greedy), (other, other_greedy) in zip(found, expected, strict=True):
        assert value == pytest.approx(other, abs=2e-5)
        assert greedy == other_greedy
    if kind == "mistral":
        assert not rows, "a sliding window hides what a row's mask would show"
    else:
        assert sum(len(row.ids) for row in rows) < sum(len(a) + len(b) for _, a, b in asked) / 2
    greedy_ids = model(torch.tensor([[1, 2, 3]])).logits[0, -1].argmax().item()
    assert packed._loglikelihood_tokens([(None, [1, 2, 3], [greedy_ids])])[0][1]


def spy(packed: PackedModel, monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    """The rows that the model is shown."""
    seen: list[Row] = []
    before = packed._answers

    def answers(row: Row, follows: Sequence[Sequence[int]]) -> list[tuple[float, bool]]:
        seen.append(row)
        return before(row, follows)

    monkeypatch.setattr(packed, "_answers", answers)
    return seen


def test_a_model_that_rows_would_change_is_asked_the_harnesss_way(tmp_path: Path) -> None:
    make_model(tmp_path)
    tokenizer, model = load_tokenizer(tmp_path), models(tmp_path)["gpt2"]
    forward = model.forward

    def shifted(*args: object, **given: object) -> object:
        """Computes as a model that ignores the mask of a row."""
        if given.get("attention_mask") is not None:
            given["attention_mask"] = torch.ones_like(given["attention_mask"]).tril()  # type: ignore[arg-type]
        return forward(*args, **given)

    model.forward = shifted
    asked = requests(len(tokenizer))
    packed = PackedModel(model, tokenizer, batch_size=4)
    expected = packed._padded(asked)
    assert packed._loglikelihood_tokens(asked) == expected
    assert not packed.packs
