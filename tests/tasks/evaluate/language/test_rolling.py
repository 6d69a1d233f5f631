"""Rolling perplexity: the windows and the numbers of lm-evaluation-harness."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.pretrained import load_pretrained
from models.tokenizer import load_tokenizer
from tasks.evaluate.language.rolling import SLACK, Window, batches, measure_texts, rolling_windows, summary
from tasks.evaluate.language.scores import TransformersScorer
from tests.conftest import DATA
from tests.tasks.tiny_model import make_model, texts

STORIES = DATA / "models" / "stories260k" / "hf"
TEXTS = [*list(texts())[:5], " ".join(texts())[:3000], "x", "Füchse — 🦊\n\n" * 40, "<|endoftext|> begins here", " "]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("rolling") / "model")


@given(st.integers(0, 70), st.integers(1, 12))
def test_windows_are_those_of_the_harness(number: int, length: int) -> None:
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    ids = list(range(100, 100 + number))
    theirs = list(
        map(make_disjoint_window, get_rolling_token_windows(ids, prefix_token=7, max_seq_len=length, context_len=1))
    )
    ours = rolling_windows(ids, 7, length)
    assert [(list(window.ids), list(window.targets)) for window in ours] == [
        ([*before, *targets][:-1], targets) for before, targets in theirs
    ]
    assert [id for window in ours for id in window.targets] == ids


@given(st.lists(st.integers(1, 100), max_size=60), st.integers(1, 400))
def test_batches_hold_every_window_once_with_little_padding(lengths: list[int], budget: int) -> None:
    windows = [Window(number, range(length), [0]) for number, length in enumerate(lengths)]
    found = list(batches(windows, budget))
    assert sorted(window.document for batch in found for window in batch) == list(range(len(lengths)))
    for batch in found:
        places = max(len(window.ids) for window in batch) * len(batch)
        assert len(batch) == 1 or places <= budget
        assert places - sum(len(window.ids) for window in batch) <= SLACK * places


@pytest.mark.parametrize("context", [None, 50])
def test_perplexities_are_those_of_the_harness(model: Path, context: int | None) -> None:
    check_against_harness(model, TEXTS, context)


@pytest.mark.skipif(not STORIES.is_dir(), reason=f"no {STORIES}")
def test_perplexities_of_a_model_with_bos_are_those_of_the_harness() -> None:
    check_against_harness(STORIES, ["Once upon a time, there was a little fox.", "One day " * 500], None)


def check_against_harness(folder: Path, given: list[str], context: int | None) -> None:
    from lm_eval.api.instance import Instance
    from lm_eval.api.metrics import bits_per_byte, weighted_perplexity
    from lm_eval.models.huggingface import HFLM

    loaded, tokenizer = load_pretrained(folder).eval(), load_tokenizer(folder)
    harness = HFLM(pretrained=loaded, tokenizer=tokenizer, batch_size=4, device="cpu", max_length=context)
    requests = [Instance("loglikelihood_rolling", {}, (text,), number) for number, text in enumerate(given)]
    theirs = harness.loglikelihood_rolling(requests, disable_tqdm=True)
    ours = measure_texts(TransformersScorer(loaded), tokenizer, iter(given), context=context)
    assert [-document.nats for document in ours] == pytest.approx(theirs, rel=1e-6)
    found = summary(ours)
    words = [len(re.split(r"\s+", text)) for text in given]
    sizes = [len(text.encode()) for text in given]
    assert found["word_perplexity"] == pytest.approx(
        weighted_perplexity(list(zip(theirs, words, strict=True))), rel=1e-5
    )
    assert found["byte_perplexity"] == pytest.approx(
        weighted_perplexity(list(zip(theirs, sizes, strict=True))), rel=1e-6
    )
    assert found["bits_per_byte"] == pytest.approx(bits_per_byte(list(zip(theirs, sizes, strict=True))), rel=1e-6)


def test_other_batches_give_the_same_numbers(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, tokenizer = load_pretrained(model).eval(), load_tokenizer(model)
    usual = measure_texts(TransformersScorer(loaded), tokenizer, TEXTS)
    for name, value in (("TOGETHER", 1), ("MOST_TOKENS", {"cpu": 1})):
        monkeypatch.setattr(f"tasks.evaluate.language.rolling.{name}", value)
        other = measure_texts(TransformersScorer(loaded), tokenizer, TEXTS)
        assert [document.nats for document in other] == pytest.approx([document.nats for document in usual], rel=1e-6)
        assert [document[1:] for document in other] == [document[1:] for document in usual]


def test_a_perplexity_that_no_float_holds_is_none() -> None:
    from tasks.evaluate.language.rolling import Document

    found = summary([Document(nats=7000.0, tokens=900, words=2, bytes=1000)])
    assert found["word_perplexity"] is None
    assert found["byte_perplexity"] == pytest.approx(math.exp(7))
    assert found["bits_per_byte_stderr"] is None
