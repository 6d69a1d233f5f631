"""Answers with the common beginning computed once equal the harness's, which computes it for each prompt."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from models.tokenizer import load_tokenizer
from storage.errors import OutOfMemory
from tasks.evaluate.score.forward.shared_prefix import Beginnings
from tasks.evaluate.score.model import PackedModel
from tests.tasks.evaluate.test_packed import CONTEXT, models
from tests.tasks.tiny_model import make_model


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, PreTrainedModel], Any]:
    folder = make_model(tmp_path_factory.mktemp("beginning") / "model")
    return models(folder), load_tokenizer(folder)


def prompts(number: int, examples: str = "The fox lives in the wood. " * 3) -> list[str]:
    return [f"{examples}{'An old ' * (which % 3)}owl" for which in range(number)]


def answers(lm: Any, asked: list[str], **more: Any) -> list[str]:
    from lm_eval.api.instance import Instance

    arguments = {"until": ["."], "max_gen_toks": 9, **more}
    torch.manual_seed(1)
    requests = [Instance("generate_until", {}, (prompt, arguments), number) for number, prompt in enumerate(asked)]
    return lm.generate_until(requests, disable_tqdm=True)  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["gpt2", "mistral"])
@pytest.mark.parametrize("more", [{}, {"do_sample": True, "temperature": 1.0}])
def test_answers_are_the_harnesss_own(
    kind: str, more: dict[str, Any], known: tuple[dict[str, PreTrainedModel], Any]
) -> None:
    from lm_eval.models.huggingface import HFLM

    models, tokenizer = known
    ours = PackedModel(models[kind], tokenizer, batch_size=4)
    theirs = HFLM(pretrained=models[kind], tokenizer=tokenizer, batch_size=4, max_length=CONTEXT)
    asked = prompts(11)
    assert answers(ours, asked, **more) == answers(theirs, asked, **more)
    assert ours.shares is (None if kind == "mistral" else True), "a sliding window forgets what it shared"


def test_examples_are_computed_once_for_all_batches(
    known: tuple[dict[str, PreTrainedModel], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[int] = []
    before = Beginnings._compute

    def compute(beginnings: Beginnings, ids: list[int]) -> None:
        computed.append(len(ids))
        before(beginnings, ids)

    monkeypatch.setattr(Beginnings, "_compute", compute)
    models, tokenizer = known
    lm = PackedModel(models["gpt2"], tokenizer, batch_size=4)
    answers(lm, prompts(12))
    assert len(computed) == 1
    assert computed[0] >= 20
    answers(lm, prompts(4, "Nobody has seen the hen since it was young. " * 3))
    assert len(computed) == 2


def test_where_the_proof_fails_the_harnesss_way_is_taken(
    known: tuple[dict[str, PreTrainedModel], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    models, tokenizer = known
    expected = answers(PackedModel(models["gpt2"], tokenizer, batch_size=4), prompts(6))
    monkeypatch.setattr(PackedModel, "_next_is_the_same", lambda *_: False)
    lm = PackedModel(models["gpt2"], tokenizer, batch_size=4)
    assert answers(lm, prompts(6)) == expected
    assert lm.shares is False


def padded(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    width = max(map(len, rows))
    ids = torch.tensor([[7] * (width - len(row)) + row for row in rows])
    return ids, torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])


@given(st.lists(st.lists(st.integers(1, 2), min_size=1, max_size=6), min_size=2, max_size=6), st.integers(0, 80))
def test_padding_moves_behind_what_is_shared(ends: list[list[int]], common: int) -> None:
    rows = [[3] * common + row for row in ends]
    beginnings = Beginnings.__new__(Beginnings)
    beginnings.ids, beginnings.layers = [], []
    beginnings._compute = lambda shared: setattr(beginnings, "ids", shared)  # type: ignore[method-assign]
    ids, mask = padded(rows)
    found = beginnings.of(ids, mask)
    if found is None:
        assert common * (len(rows) - 1) < 64
        return
    assert common <= len(beginnings.ids) < min(map(len, rows)) or common == min(map(len, rows))
    assert found.ids_BT.shape == ids.shape
    for row, ids_T, mask_T in zip(rows, found.ids_BT, found.mask_BT, strict=True):
        assert ids_T[mask_T.bool()].tolist() == row
        assert mask_T[: len(beginnings.ids)].all()
        assert mask_T[-1]


def test_a_batch_that_is_too_large_is_answered_in_halves(
    known: tuple[dict[str, PreTrainedModel], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    models, tokenizer = known
    expected = answers(PackedModel(models["gpt2"], tokenizer, batch_size=2), prompts(7))
    before, sizes = PackedModel._generated, list[int]()

    def generated(lm: PackedModel, context: Tensor, *given: Any, **more: Any) -> Tensor:
        sizes.append(len(context))
        if len(context) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return before(lm, context, *given, **more)

    monkeypatch.setattr(PackedModel, "_generated", generated)
    assert answers(PackedModel(models["gpt2"], tokenizer, batch_size=7), prompts(7)) == expected
    assert sizes == [7, 3, 1, 2, 4, 2, 2]


def test_a_prompt_that_is_too_large_alone_is_told(
    known: tuple[dict[str, PreTrainedModel], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def generated(*_: Any, **__: Any) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    models, tokenizer = known
    monkeypatch.setattr(PackedModel, "_generated", generated)
    with pytest.raises(OutOfMemory, match="doesn't fit into memory"):
        answers(PackedModel(models["gpt2"], tokenizer, batch_size=2), prompts(2))
