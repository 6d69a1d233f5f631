"""The vocabulary and the token shards: nothing is lost, nothing is parsed that is text, nothing depends on order."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.tokenizer import EOS, SPECIAL_TOKENS, load_tokenizer, tokenizer_digest
from storage.artifact import Artifact
from storage.documents import Document, shard_name, write_documents
from storage.errors import EmptyOutput, TokenizerMismatch
from storage.token_stream import TokenStream
from storage.tokens import open_tokens
from tasks.output import Output
from tasks.tokenize import TokenizeConfig, in_validation, tokenize
from tasks.tokenizer import TokenizerConfig, load_for_documents, train_tokenizer
from tests.tasks.tiny_model import RUNTIME, make_tokenizer, texts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@given(st.text())
@settings(max_examples=300, deadline=None)
def test_every_text_comes_back(folder: Path, text: str) -> None:
    tokenizer = load_for_documents(folder)
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert all(number >= len(SPECIAL_TOKENS) for number in ids)


def test_special_tokens_in_a_document_are_text_and_in_a_prompt_are_tokens(folder: Path) -> None:
    text = f"before{EOS}after"
    assert 0 not in load_for_documents(folder).encode(text).ids
    assert 0 in load_tokenizer(folder).encode(text)


def test_neither_order_nor_shards_change_a_byte(tmp_path: Path) -> None:
    documents = [Document.new(text, f"source{number % 3}") for number, text in enumerate(texts())]
    made = []
    for shards, seed in ((1, 0), (4, 1)):
        shuffled = documents.copy()
        random.Random(seed).shuffle(shuffled)
        for number in range(shards):
            write_documents(tmp_path / str(shards) / "in" / shard_name(number), shuffled[number::shards])
        out = Output.at(tmp_path / str(shards), runtime=RUNTIME)
        config = TokenizerConfig(vocab_size=500, sample_bytes_per_source=6000)
        train_tokenizer.function(config, Artifact.at(tmp_path / str(shards) / "in"), out)
        made.append({path.name: path.read_bytes() for path in out.path.iterdir()})
    assert made[0] == made[1]


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
