"""The vocabulary and the token shards: nothing is lost, text is never parsed as special tokens, order is irrelevant."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.tokenizer import EOS, SPECIAL_TOKENS, load_tokenizer, tokenizer_digest
from storage.artifact import Artifact
from storage.errors import DamagedArtifact, EmptyOutput, TokenizerMismatch
from storage.shards.documents import Document, shard_name, write_documents
from storage.shards.token_stream import TokenStream
from storage.shards.tokens import open_tokens
from storage.store import Store
from tasks.pretrain import PretrainConfig, pretrain
from tasks.stage.output import Output
from tasks.stage.session import Session, open_session
from tasks.tokenize.split import in_validation
from tasks.tokenize.stage import TokenizeConfig, tokenize
from tasks.tokenizer import TokenizerConfig, load_for_documents, sample, train_tokenizer
from tasks.training.model_folder import check_shards
from tests.runtimes import runtime_of
from tests.tasks.tiny_model import RUNTIME, make_tokenizer, texts

PRETRAIN = PretrainConfig.model_validate({"model": {"depth": 2, "context": 32}, "steps": 30})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@given(st.text())
@settings(max_examples=300)
def test_every_text_comes_back(folder: Path, text: str) -> None:
    tokenizer = load_for_documents(folder)
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert all(number >= len(SPECIAL_TOKENS) for number in ids)


def test_special_tokens_in_a_document_are_text_and_in_a_prompt_are_tokens(folder: Path) -> None:
    text = f"before{EOS}after"
    assert 0 not in load_for_documents(folder).encode(text).ids
    assert 0 in load_tokenizer(folder).encode(text)


def test_neither_order_nor_shards_nor_workers_change_a_byte_or_a_count(tmp_path: Path) -> None:
    documents = [Document.new(text, f"source{number % 3}") for number, text in enumerate(texts())]
    config = TokenizerConfig(vocab_size=500, sample_bytes_per_source=6000)
    made = [
        trained(tmp_path / f"{shards}-{workers}", documents, config, shards=shards, seed=seed, workers=workers)
        for shards, seed, workers in ((1, 0, 1), (4, 1, 1), (4, 2, 3))
    ]
    assert {"tokenizer.json", "report.md"} <= made[0].files.keys()
    assert all(other == made[0] for other in made[1:])


def test_what_is_measured_is_a_part_that_does_not_depend_on_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "MEASURED_BYTES", 2000)
    documents = [Document.new(text, f"source{number % 3}") for number, text in enumerate(texts())]
    documents.append(Document.new("", "empty"))
    config = TokenizerConfig(vocab_size=500, sample_bytes_per_source=6000)
    first, second = (
        trained(tmp_path / str(shards), documents, config, shards=shards, seed=shards, workers=1) for shards in (1, 4)
    )
    assert first == second
    longest = max(len(document.text.encode()) for document in documents)
    rows = first.counts["tables"]["Bytes per token"]
    assert [row["source"] for row in rows] == ["source0", "source1", "source2", "all"]
    for row in rows[:3]:
        assert 2000 <= row["measured bytes"] < 2000 + longest
        assert row["of these, in training"] == 0, "the share leaves enough to measure"
        assert 0 < row["training bytes"] < sum(len(d.text.encode()) for d in documents if d.source == row["source"])
    assert first.counts["sample_bytes"] == rows[3]["training bytes"]


def test_a_tokenizer_that_is_kept_is_measured_on_the_same_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "MEASURED_BYTES", 2000)
    documents = [Document.new(text, f"source{number % 3}") for number, text in enumerate(["", *texts()])]
    shards = [tmp_path / f"{number}.parquet" for number in range(2)]
    for number, shard in enumerate(shards):
        write_documents(shard, documents[number::2])
    drawn = sample.draw_sample(TokenizerConfig(), shards, Output.at(tmp_path / "drawn"))
    assert sample.texts_to_measure(shards, Output.at(tmp_path / "kept")) == drawn.measured
    for source, found in drawn.measured.items():
        mine = sorted((d for d in documents if d.source == source and d.text), key=lambda d: -sample.draw(d.id))
        assert found == [d.text for d in mine[: len(found)]]
        assert sum(map(len, found[:-1])) < 2000 <= sum(map(len, map(str.encode, found)))


def test_of_a_document_longer_than_what_is_measured_the_beginning_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole, one of 50 MB would take `tokenizers` ten gigabytes."""
    monkeypatch.setattr(sample, "MEASURED_BYTES", 2000)
    documents = [Document.new(" ".join(texts()), "a")]
    found = trained(tmp_path, documents, TokenizerConfig(vocab_size=500), shards=1, seed=0, workers=1)
    row = found.counts["tables"]["Bytes per token"][0]
    assert row["measured bytes"] == row["of these, in training"] == 2000
    assert row["training bytes"] == len(documents[0].text)


def test_of_every_source_one_document_is_learned_from_though_its_share_holds_none(tmp_path: Path) -> None:
    documents = [Document.new(text, "many") for text in texts()] + [
        Document.new("one", "few"),
        Document.new("", "none"),
    ]
    config = TokenizerConfig(vocab_size=500, sample_bytes_per_source=1)
    found = trained(tmp_path, documents, config, shards=2, seed=0, workers=1)
    rows = {row["source"]: row for row in found.counts["tables"]["Bytes per token"]}
    assert rows.keys() == {"few", "many", "all"}
    assert rows["few"]["training bytes"] == rows["few"]["of these, in training"] == 3
    assert rows["many"]["training bytes"] in {len(document.text.encode()) for document in documents}


class Trained(NamedTuple):
    files: dict[str, bytes]
    counts: dict[str, Any]


def trained(
    folder: Path, documents: list[Document], config: TokenizerConfig, *, shards: int, seed: int, workers: int
) -> Trained:
    shuffled = documents.copy()
    random.Random(seed).shuffle(shuffled)
    for number in range(shards):
        write_documents(folder / "in" / shard_name(number), shuffled[number::shards])
    out = Output.at(folder, runtime=runtime_of(workers=workers, threads=1, device="cpu"))
    train_tokenizer.function(config, Artifact.at(folder / "in"), out)
    return Trained({path.name: path.read_bytes() for path in out.path.iterdir()}, out.counts)


def test_a_sample_too_poor_for_the_vocabulary_gives_a_smaller_one_and_says_so(tmp_path: Path) -> None:
    write_documents(tmp_path / "in" / shard_name(0), [Document.new("ab ab ab", "a")])
    out = Output.at(tmp_path, runtime=RUNTIME)
    train_tokenizer.function(TokenizerConfig(vocab_size=1000), Artifact.at(tmp_path / "in"), out)
    assert out.counts["vocab_size"] < 300


def test_token_shards_hold_every_document_once_with_its_end(folder: Path, tmp_path: Path) -> None:
    documents = [Document.new(text, "test") for text in texts()]
    for number in range(3):
        write_documents(tmp_path / "in" / shard_name(number), documents[number::3])
    out = Output.at(tmp_path, runtime=RUNTIME)
    tokenize.function(TokenizeConfig(validation_share=0.2), Artifact.at(tmp_path / "in"), Artifact.at(folder), out)
    tokenizer = load_for_documents(folder)
    found: dict[str, set[str]] = {}
    for split in ("train", "validation"):
        for path in out.path.glob(f"{split}/*.tokens"):
            shard = open_tokens(path, tokenizer_digest=tokenizer_digest(folder), verify=True)
            assert shard.ids.dtype == np.uint16
            for first, end in zip(shard.starts[:-1], shard.starts[1:], strict=True):
                ids = shard.ids[int(first) : int(end)].tolist()
                assert ids[-1] == 0
                found.setdefault(split, set()).add(tokenizer.decode(ids[:-1], skip_special_tokens=False))
    assert found["train"] | found["validation"] == {document.text for document in documents}
    assert not found["train"] & found["validation"]
    held_out = {document.text for document in documents if in_validation(document.id, 0.2)}
    assert found["validation"] == held_out
    with pytest.raises(TokenizerMismatch, match="was made with tokenizer"):
        open_tokens(next(out.path.glob("train/*.tokens")), tokenizer_digest="f" * 64)


@pytest.mark.parametrize(
    ("file", "at"),
    [("00000.tokens", byte) for byte in (16, 20, 40, 200, 300)] + [("00000.sources", 11)],
    ids=["vocabulary", "EOS", "bytes of text", "nothing", "ids", "sources"],
)
def test_a_shard_of_the_store_with_any_byte_changed_is_refused_by_name(
    folder: Path, tmp_path: Path, file: str, at: int
) -> None:
    write_documents(tmp_path / "in" / shard_name(0), [Document.new(text, "test") for text in texts()])
    tokenizer = Artifact.at(folder)
    with open_session(Session(Store(str(tmp_path / "store")), RUNTIME)):
        made, _ = tokenize.materialize(TokenizeConfig(validation_share=0.2), [Artifact.at(tmp_path / "in"), tokenizer])
    digest = tokenizer_digest(folder)
    assert [path.name for path in check_shards(made.part("validation"), digest)] == ["00000.tokens"]
    for path in made.path.glob(f"*/{file}"):
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)
    refused = pytest.raises(DamagedArtifact, match=rf"{file}.* has changed bytes")
    with refused:
        check_shards(made.part("validation"), digest)
    with refused:
        pretrain.function(PRETRAIN, made, tokenizer, Output.at(tmp_path, runtime=RUNTIME))


def test_a_source_of_which_nothing_is_held_out_is_told(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    monkeypatch.setattr(Output, "warn", lambda self, message: notes.append(message))
    many = [Document.new(text, "many") for text in texts()]
    few = [Document.new(text, "few") for text in ("two", "one", "four", "six")]
    assert [in_validation(document.id, 0.2) for document in few] == [True, False, False, False]
    told = "no document of few is held out: the validation loss does not cover it"
    for number, expected in ((4, []), (3, [told])):
        notes.clear()
        write_documents(tmp_path / "in" / shard_name(0), [*many, *few[-number:]])
        out = Output.at(tmp_path / str(number), runtime=RUNTIME)
        tokenize.function(TokenizeConfig(validation_share=0.2), Artifact.at(tmp_path / "in"), Artifact.at(folder), out)
        assert notes == expected


def test_which_documents_are_held_out_is_the_same_on_every_machine() -> None:
    assert [number for number in range(40) if in_validation(str(number), 0.2)] == [3, 13, 21, 28, 31, 33, 34]


def test_an_empty_split_ends_the_run(folder: Path, tmp_path: Path) -> None:
    write_documents(tmp_path / "in" / shard_name(0), [Document.new("only one", "a")])
    out = Output.at(tmp_path, runtime=RUNTIME)
    with pytest.raises(EmptyOutput, match="No document fell into"):
        tokenize.function(TokenizeConfig(validation_share=0.01), Artifact.at(tmp_path / "in"), Artifact.at(folder), out)


def test_a_stream_reads_across_its_shards(folder: Path, tmp_path: Path) -> None:
    from tests.tasks.tiny_model import make_validation

    paths = sorted(make_validation(tmp_path / "tokens", folder).glob("*.tokens"))
    stream = TokenStream(paths, tokenizer_digest=tokenizer_digest(folder))
    whole = np.concatenate([open_tokens(path).ids for path in paths])
    border = len(open_tokens(paths[0]).ids)
    assert stream.tokens == len(whole)
    assert stream.read(border - 5, 10).tolist() == whole[border - 5 : border + 5].tolist()
    assert len(stream.read(stream.tokens - 3, 10)) == 3
