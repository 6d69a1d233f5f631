"""Fill-in-the-middle: only the order of a document's tokens changes, in the set share, wherever it is served."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from models.convert import load
from models.tokenizer import FIM_TOKENS, SPECIAL_TOKENS, load_tokenizer, tokenizer_digest
from storage.artifact import Artifact
from storage.digests import list_files, tree_digest
from storage.errors import ConfigError
from storage.shards.arrays import Int64
from storage.shards.token_stream import TokenStream
from tasks.pretrain import PretrainConfig, pretrain
from tasks.pretrain.fim_tokens import FimTokens, read_fim_tokens
from tasks.pretrain.loader import Batch, open_loader
from tasks.pretrain.loader.batch import shorten
from tasks.pretrain.loader.fim import SHORTEST, FillInTheMiddle
from tasks.stage.output import Output
from tasks.training.bits_per_byte import likelihood
from tasks.training.logs import read_log
from tests.tasks.interrupt import interrupt_and_resume
from tests.tasks.pretrain import tiny_training as training
from tests.tasks.pretrain.tiny_training import losses_of, output

EOS, MARKS = 0, FimTokens(6, 7, 8)
MODEL = {**training.MODEL, "context": 64}
CONFIG = PretrainConfig.model_validate(
    {
        "model": MODEL,
        "steps": 8,
        "global_batch": 8,
        "warmup_steps": 2,
        "validation_every": 4,
        "sample_tokens": 4,
        "fim_rate": 0.5,
    }
)


def filler(rate: float = 1.0, spm_share: float = 0.5, seed: int = 0) -> FillInTheMiddle:
    return FillInTheMiddle(MARKS, eos_id=EOS, rate=rate, spm_share=spm_share, seed=seed)


def batch_of(rows: Int64) -> Batch:
    return Batch(rows[:, :-1], rows[:, 1:])


def rows_of(batch: Batch) -> list[list[int]]:
    assert np.array_equal(batch.ids[:, 1:], batch.targets[:, :-1])
    rows: list[list[int]] = np.concatenate((batch.ids, batch.targets[:, -1:]), axis=1).tolist()
    return rows


def documents(row: list[int]) -> list[list[int]]:
    """The parts of documents in a row, EOS included."""
    borders = [0, *(place + 1 for place, id in enumerate(row) if id == EOS), len(row)]
    return [row[start:end] for start, end in itertools.pairwise(borders) if end > start]


def pieces(document: list[int]) -> tuple[list[int], list[int], list[int]]:
    """Between the prefix's mark and the suffix's, from there to the middle's, and behind it; what is cut off is empty.

    In both orders the document is the first, then the last, then the second.
    """
    assert document[0] == MARKS.prefix
    suffix = document.index(MARKS.suffix) if MARKS.suffix in document else len(document)
    middle = document.index(MARKS.middle) if MARKS.middle in document else len(document)
    return document[1:suffix], document[suffix + 1 : middle], document[middle + 1 :]


def undone(document: list[int]) -> list[int]:
    """A whole document as it was."""
    end = [EOS] if document[-1] == EOS else []
    prefix, suffix, middle = pieces(document[: len(document) - len(end)])
    return prefix + middle + suffix + end


TOKENS = st.sampled_from([EOS, *range(20, 40)])


@settings(max_examples=300)
@given(
    rows=st.integers(1, 40).flatmap(
        lambda width: st.lists(st.lists(TOKENS, min_size=width + 1, max_size=width + 1), min_size=1, max_size=6)
    ),
    rate=st.sampled_from([0.3, 1.0]),
    spm_share=st.sampled_from([0.0, 0.5, 1.0]),
    first=st.integers(0, 1 << 40),
)
def test_undone_it_is_the_original_up_to_what_hangs_over(
    rows: list[list[int]], rate: float, spm_share: float, first: int
) -> None:
    served = rows_of(filler(rate, spm_share).rearrange(batch_of(np.array(rows)), first, 1))
    for before, after in zip(rows, served, strict=True):
        assert len(after) == len(before)
        for number, (old, new) in enumerate(zip(documents(before), documents(after), strict=False)):
            if new[0] != MARKS.prefix:
                assert new == old[: len(new)]
                assert new == old or number + 1 == len(documents(after))
            elif new[-1] == EOS:
                assert undone(new) == old
            else:  # the last, cut off somewhere
                prefix, suffix, middle = pieces(new)
                text = [id for id in old if id != EOS]
                assert text[: len(prefix)] == prefix
                if MARKS.middle in new:
                    assert text[len(prefix) :][: len(middle)] == middle
                    assert text[len(text) - len(suffix) :] == suffix
                else:
                    assert any(text[place:][: len(suffix)] == suffix for place in range(len(prefix), len(text) + 1))
            if rate == 1.0:
                assert (new[0] == MARKS.prefix) == (len([id for id in old if id != EOS]) >= SHORTEST)


LENGTH, ROWS = 300, 3000


@pytest.fixture(scope="module")
def long_documents() -> Int64:
    """A row each: a document of 300 different tokens, then others too short to be rearranged."""
    rows = np.full((ROWS, LENGTH + 13), 1000)
    rows[:, :LENGTH] = np.arange(20, 20 + LENGTH)
    rows[:, LENGTH::3] = EOS
    return rows


@pytest.mark.parametrize(("rate", "spm_share"), [(0.5, 0.5), (0.9, 0.2), (0.1, 1.0), (1.0, 0.0)])
def test_shares_and_places_are_those_asked_for(rate: float, spm_share: float, long_documents: Int64) -> None:
    served = rows_of(filler(rate, spm_share).rearrange(batch_of(long_documents), 0, 1))
    rearranged = [documents(row)[0] for row in served if row[0] == MARKS.prefix]
    assert len(rearranged) / ROWS == pytest.approx(rate, abs=0.04)
    assert all(undone(document) == long_documents[0, : LENGTH + 1].tolist() for document in rearranged)
    behind = long_documents[0, LENGTH + 1 :].tolist()
    assert all(row[LENGTH + 4 :] == behind[:-3] for row in served if row[0] == MARKS.prefix)
    assert all(row == long_documents[0].tolist() for row in served if row[0] != MARKS.prefix)
    in_spm = [document for document in rearranged if document[1] == MARKS.suffix]
    # one in 150 of the rest has an empty prefix, which looks the same
    assert len(in_spm) / len(rearranged) == pytest.approx(spm_share + (1 - spm_share) / 150, abs=0.05)
    ends = np.array([len(pieces(document[:-1])[1]) for document in rearranged])  # the suffix, in both orders
    assert ends.mean() == pytest.approx(LENGTH / 3, abs=15)
    assert ends.std() == pytest.approx(LENGTH / 18**0.5, abs=10)
    assert ends.min() < 15 < 200 < ends.max()


def test_every_cut_of_a_short_document_is_drawn() -> None:
    rows = np.tile(np.array([20, 21, 22, EOS, 30, EOS, 30, EOS]), (500, 1))
    served = rows_of(filler(spm_share=0.0).rearrange(batch_of(rows), 0, 1))
    found = {tuple(len(piece) for piece in pieces(documents(row)[0][:-1])) for row in served}
    assert found == {(a, 3 - b, b - a) for a in range(4) for b in range(a, 4)}


def test_documents_of_a_sample_and_samples_and_seeds_are_drawn_apart() -> None:
    row = np.array([*range(20, 120), EOS, *range(20, 120), EOS, *range(20, 119)])
    rows = np.tile(row, (50, 1))
    served = rows_of(filler(spm_share=0.0).rearrange(batch_of(rows), 7, 1))  # SPM shows but one of the two places
    assert len({tuple(documents(one)[0]) for one in served}) == 50
    assert all(documents(one)[0] != documents(one)[1] for one in served)
    assert rows_of(filler(spm_share=0.0, seed=1).rearrange(batch_of(rows), 7, 1)) != served


@settings(max_examples=60)
@given(count=st.integers(1, 9), first=st.integers(0, 1 << 40), parts=st.sampled_from([1, 2, 8]), seed=st.integers(0, 9))
def test_what_is_drawn_does_not_depend_on_what_is_read_with_it(count: int, first: int, parts: int, seed: int) -> None:
    rows = np.random.default_rng(seed).integers(-40, 100, (count, 65))
    rows = np.where(rows < 0, EOS, rows + 20) if seed % 2 else np.abs(rows) + 20
    fim = filler(0.7, seed=seed)

    def serve(start: int, end: int) -> list[list[int]]:
        batch = batch_of(rows[start:end])
        return rows_of(fim.rearrange(shorten(batch, parts) if parts > 1 else batch, first + start, parts))

    one_by_one = [row for number in range(count) for row in serve(number, number + 1)]
    assert serve(0, count) == one_by_one


def run(folder: Path, data: tuple[Artifact, Artifact], **runtime: Any) -> Output:
    out = output(folder, **runtime)
    pretrain.function(CONFIG, *data, out)
    return out


@pytest.fixture(scope="module")
def trained(data: tuple[Artifact, Artifact], tmp_path_factory: pytest.TempPathFactory) -> Output:
    return run(tmp_path_factory.mktemp("trained"), data)


@pytest.mark.soak
def test_a_training_fills_in_and_is_validated_from_left_to_right(
    trained: Output, data: tuple[Artifact, Artifact]
) -> None:
    rows = read_log(trained.path / "log.jsonl")
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.3
    stream = TokenStream(data[0].files("validation/*"), tokenizer_digest=tokenizer_digest(data[1].path))
    measured = likelihood(load(trained.path / "model"), stream, context=64)
    assert measured.nats_per_token == pytest.approx(rows[-1]["validation_loss"], abs=1e-5)


@pytest.mark.soak
def test_what_the_marks_cost_is_reported(trained: Output, data: tuple[Artifact, Artifact]) -> None:
    loader = open_loader(
        data[0].files("train/*.tokens"),
        CONFIG,
        context=64,
        tokenizer_digest=tokenizer_digest(data[1].path),
        fim_tokens=read_fim_tokens(data[1].path, 600),
    )
    ids = np.concatenate([loader.micro_batches(step, rank=0, ranks=1, size=8)[0].ids for step in range(1, 9)])
    assert trained.counts["fim"] == {
        "rearranged_a_window": round(float((ids == MARKS.prefix).sum(1).mean()), 4),
        "cut_off_share": round(float(((ids >= 6) & (ids <= 8)).mean()), 6),
    }
    assert 0.3 < trained.counts["fim"]["rearranged_a_window"] < 2
    table = {row["measure"]: row["value"] for row in trained.counts["tables"]["Fill in the middle"]}
    assert table["cut off for FIM tokens"] == f"{trained.counts['fim']['cut_off_share']:.2%} of the tokens"


@pytest.mark.soak
def test_interrupted_and_resumed_it_ends_with_the_same_bytes(
    trained: Output, data: tuple[Artifact, Artifact], tmp_path: Path
) -> None:
    out = output(tmp_path)
    interrupt_and_resume(pretrain, CONFIG, data, out, at=5)
    assert out.facts["resumed_from_step"] == 3
    assert tree_digest(list_files(out.path)) == tree_digest(list_files(trained.path))
    assert out.counts == trained.counts


@pytest.mark.soak
def test_processes_and_micro_batches_learn_the_same(
    trained: Output, data: tuple[Artifact, Artifact], tmp_path: Path
) -> None:
    out = run(tmp_path, data, micro_batch=2, processes=2)
    assert losses_of(out) == pytest.approx(losses_of(trained), abs=2e-4)  # sums in another order
    assert out.counts["fim"] == trained.counts["fim"]


def test_the_marks_are_asked_of_the_tokenizer(data: tuple[Artifact, Artifact]) -> None:
    assert list(read_fim_tokens(data[1].path, 600)) == load_tokenizer(data[1].path).convert_tokens_to_ids(
        list(FIM_TOKENS)
    )
    assert read_fim_tokens(data[1].path, 600) == tuple(SPECIAL_TOKENS.index(token) for token in FIM_TOKENS)


@pytest.mark.parametrize("change", ["missing", "ordinary", "beyond"])
def test_a_tokenizer_without_the_marks_is_refused_before_training(
    change: str, data: tuple[Artifact, Artifact], tmp_path: Path
) -> None:
    tokenizer = shutil.copytree(data[1].path, tmp_path / "tokenizer")
    settings = json.loads((tokenizer / "tokenizer.json").read_text())
    (suffix,) = (token for token in settings["added_tokens"] if token["content"] == "<|fim_suffix|>")
    if change == "missing":
        settings["added_tokens"].remove(suffix)
    else:
        suffix |= {"special": False} if change == "ordinary" else {"id": 600}
    (tokenizer / "tokenizer.json").write_text(json.dumps(settings))
    for split in ("train", "validation"):
        shutil.copytree(data[0].path / split, tmp_path / "tokens" / split)
        for path in (tmp_path / "tokens" / split).glob("*.tokens"):
            content = bytearray(path.read_bytes())
            old, new = (bytes.fromhex(tokenizer_digest(folder)) for folder in (data[1].path, tokenizer))
            path.write_bytes(content.replace(old, new))
    with pytest.raises(ConfigError, match=r"special tokens that this tokenizer lacks: <\|fim_suffix\|>\."):
        run(tmp_path, (Artifact.at(tmp_path / "tokens"), Artifact.at(tokenizer)))


@pytest.mark.parametrize("choice", [{"fim_rate": 1.5}, {"fim_rate": -0.1}, {"fim_spm_share": 2}])
def test_a_share_is_between_0_and_1(choice: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match=next(iter(choice))):
        PretrainConfig.model_validate({"model": MODEL, **choice})
