"""Document and token shards: what is written is read back, and damage is refused by name."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import DamagedArtifact, StoreError, TokenizerMismatch
from storage.shards.documents import (
    DOCUMENT_SCHEMA,
    Document,
    Verdict,
    count_rows,
    read_batches,
    read_documents,
    read_ledger,
    shard_name,
    write_documents,
    write_ledger,
)
from storage.shards.tokens import open_tokens, write_tokens

DIGEST, OTHER = "ab" * 32, "cd" * 32
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@settings(max_examples=30)
@given(texts=st.lists(TEXT, max_size=20))
def test_documents_round_trip(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("documents") / "00000.parquet"
    documents = [Document.new(text, "source", number=number) for number, text in enumerate(texts)]
    assert write_documents(path, documents) == len(documents) == count_rows(path)
    assert list(read_documents(path)) == documents


def test_the_same_documents_give_the_same_bytes(tmp_path: Path) -> None:
    documents = [Document.new(f"text {number}", "source") for number in range(3000)]
    write_documents(tmp_path / "a.parquet", documents)
    write_documents(tmp_path / "b.parquet", iter(documents))
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_an_id_is_of_the_text_alone() -> None:
    assert Document.new("text", "a", file="x").id == Document.new("text", "b").id
    assert Document.new("text", "a").id != Document.new("text ", "a").id


def test_verdicts_round_trip(tmp_path: Path) -> None:
    verdicts = [Verdict("id", "source", "removed", "short", 3.0, 20.0, ""), Verdict("id2", "source", "changed", "pii")]
    write_ledger(tmp_path / "ledger.parquet", verdicts)
    assert list(read_ledger(tmp_path / "ledger.parquet")) == verdicts


def test_a_file_that_is_no_shard_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "00000.parquet").write_bytes(b"not parquet")
    with pytest.raises(DamagedArtifact, match=r"00000\.parquet"):
        list(read_documents(tmp_path / "00000.parquet"))
    (tmp_path / "00000.tokens").write_bytes(b"not tokens")
    with pytest.raises(DamagedArtifact, match=r"00000\.tokens"):
        open_tokens(tmp_path / "00000.tokens")


def write(path: Path, documents: list[list[int]], vocab_size: int = 512) -> None:
    arrays = [np.array(document, np.uint32) for document in documents]
    write_tokens(path, arrays, vocab_size=vocab_size, eos_id=0, tokenizer_digest=DIGEST, text_bytes=7)


@pytest.mark.parametrize(("vocab_size", "itemsize"), [(512, 2), (1 << 16, 2), ((1 << 16) + 1, 4)])
def test_tokens_round_trip_in_the_smallest_type(tmp_path: Path, vocab_size: int, itemsize: int) -> None:
    documents = [[5, vocab_size - 1, 0], [7, 0], [0]]
    write(tmp_path / "a.tokens", documents, vocab_size)
    shard = open_tokens(tmp_path / "a.tokens", tokenizer_digest=DIGEST, verify=True)
    assert shard.ids.dtype.itemsize == itemsize
    starts = shard.starts.astype(int)
    assert [shard.ids[a:b].tolist() for a, b in itertools.pairwise(starts)] == documents
    assert (shard.header.tokens, shard.header.documents, shard.header.text_bytes) == (6, 3, 7)


def test_an_id_outside_the_vocabulary_is_never_clamped(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"outside the vocabulary of 512"):
        write(tmp_path / "a.tokens", [[512]])
    assert not (tmp_path / "a.tokens").exists()


def test_another_tokenizers_shard_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.tokens", [[1, 0]])
    with pytest.raises(TokenizerMismatch, match=r"a\.tokens was made with tokenizer abab"):
        open_tokens(tmp_path / "a.tokens", tokenizer_digest=OTHER)


def test_ids_that_pass_the_vocabulary_are_found_whoever_wrote_them(tmp_path: Path) -> None:
    path = tmp_path / "a.tokens"
    write(path, [[511, 0]], 512)
    data = bytearray(path.read_bytes())
    data[256:258] = (600).to_bytes(2, "little")
    data[80:112] = hashlib.sha256(data[256:]).digest()
    path.write_bytes(data)
    with pytest.raises(DamagedArtifact, match=r"a\.tokens contains the id 600, outside its vocabulary of 512"):
        open_tokens(path, verify=True)


@pytest.mark.parametrize("at", [8, 300, -1])
def test_changed_bytes_are_found(tmp_path: Path, at: int) -> None:
    path = tmp_path / "a.tokens"
    write(path, [[number, 0] for number in range(1, 60)])
    data = bytearray(path.read_bytes())
    data[at] ^= 0x41
    path.write_bytes(data)
    with pytest.raises(DamagedArtifact, match=r"a\.tokens"):
        open_tokens(path, verify=True)
    path.write_bytes(bytes(data[:-9]))
    with pytest.raises(DamagedArtifact, match=r"a\.tokens"):
        open_tokens(path)


@pytest.mark.parametrize(
    "layout", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())], ids=str
)
def test_shards_of_other_programs_are_read_in_our_layout(layout: pa.DataType, tmp_path: Path) -> None:
    columns = {
        "text": ["one", "two"],
        "id": ["1", "2"],
        "source": ["a", "a"],
        "metadata": ["{}", "{}"],
        "more": ["", ""],
    }
    table = pa.table({name: pa.array(values, pa.string()).cast(layout) for name, values in columns.items()})
    pq.write_table(table, tmp_path / "polars.parquet")
    ((_, batch),) = read_batches(tmp_path / "polars.parquet")
    assert batch.schema.types == DOCUMENT_SCHEMA.types
    assert [document.text for document in read_documents(tmp_path / "polars.parquet")] == ["one", "two"]


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"id": ["1"], "text": [None], "source": ["a"], "metadata": ["{}"]}, "rows without text"),
        ({"id": ["1"], "source": ["a"], "metadata": ["{}"]}, "no column text"),
        ({"id": ["1"], "text": [["a"]], "source": ["a"], "metadata": ["{}"]}, "polars.parquet"),
    ],
)
def test_what_is_no_document_shard_is_refused(columns: dict[str, list[object]], named: str, tmp_path: Path) -> None:
    pq.write_table(pa.table(columns), tmp_path / "polars.parquet")
    with pytest.raises(DamagedArtifact, match=named):
        list(read_batches(tmp_path / "polars.parquet"))


def test_one_bit_of_any_page_is_found_when_the_shard_is_read_alone(tmp_path: Path) -> None:
    path = tmp_path / shard_name(0)
    write_documents(path, (Document.new(f"text {number} é", f"source {number % 3}") for number in range(50)))
    whole = path.read_bytes()
    documents = list(read_documents(path))
    with pq.ParquetFile(path) as file:
        columns = [file.metadata.row_group(0).column(number) for number in range(file.metadata.num_columns)]
    found = 0
    for column in columns:
        start = column.dictionary_page_offset or column.data_page_offset
        for at in range(start, start + column.total_compressed_size):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            try:
                assert list(read_documents(path)) == documents  # a bit of a page's header that tells nothing
            except DamagedArtifact:
                found += 1
    assert found > 0.8 * sum(column.total_compressed_size for column in columns)
    assert "checksum" in refused(path, whole, columns[1].data_page_offset + columns[1].total_compressed_size - 1)


def refused(path: Path, whole: bytes, at: int) -> str:
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(DamagedArtifact) as caught:
        list(read_documents(path))
    return str(caught.value)


def test_text_that_is_not_utf8_is_refused_and_reaches_no_compiled_code(tmp_path: Path) -> None:
    text = pa.StringArray.from_buffers(1, pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"\xe9\xff"))
    columns = {"id": ["0"], "text": text, "source": ["a"], "metadata": ["{}"]}
    pq.write_table(pa.table(columns), tmp_path / shard_name(0))
    with pytest.raises(DamagedArtifact, match="Invalid UTF8"):
        list(read_batches(tmp_path / shard_name(0)))
