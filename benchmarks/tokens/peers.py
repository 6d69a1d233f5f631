"""`python peers.py TOOL SHARDS TOKENIZER OUT`: documents to token files by a peer, in the peers' environment.

For `tokenizers` and tiktoken the shortest way that they allow: texts out of Parquet row groups, ids into an array of 16
bits, the array into a file for each split. `tokenizers` has special tokens encoded as text; tiktoken gets the same
vocabulary, a token's rank being its id. datatrove's DocumentTokenizer reads the same row groups and writes its own
files, without a split and without shuffling; it parses special tokens in texts.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

EOS = "<|endoftext|>"
GPT2 = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
Encode = Callable[[list[str]], list[list[int]]]


def encoder(tool: str, tokenizer: Path) -> Encode:
    """Texts to ids, by the tool of this name."""
    if tool == "tiktoken":
        return _tiktoken(tokenizer)
    from tokenizers import Tokenizer

    loaded = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    loaded.encode_special_tokens = True
    if tool == "tokenizers":
        return lambda texts: [loaded.encode(text).ids for text in texts]
    return lambda texts: [found.ids for found in loaded.encode_batch_fast(texts)]


def _tiktoken(tokenizer: Path) -> Encode:
    import tiktoken

    settings = json.loads((tokenizer / "tokenizer.json").read_text())
    special = {token["content"] for token in settings["added_tokens"]}
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    bytes_of = {chr(byte): byte for byte in visible}
    bytes_of |= {chr(0x100 + n): byte for n, byte in enumerate(byte for byte in range(256) if byte not in visible)}
    vocabulary = settings["model"]["vocab"]
    ranks = {bytes(bytes_of[c] for c in token): id for token, id in vocabulary.items() if token not in special}
    made = tiktoken.Encoding("ours", pat_str=GPT2, mergeable_ranks=ranks, special_tokens={})
    return lambda texts: [made.encode_ordinary(text) for text in texts]


def run(tool: str, shards: Path, tokenizer: Path, out: Path) -> dict[str, float]:
    """Encode every shard; CPU seconds with the tokenizer loaded, and the number of tokens."""
    if tool == "datatrove":
        return _datatrove(shards, tokenizer, out)
    encode = encoder(tool, tokenizer)
    eos = json.loads((tokenizer / "tokenizer.json").read_text())["model"]["vocab"][EOS]
    encode(["It loads now."])
    started = time.process_time()
    tokens = 0
    for path in sorted(shards.glob("*.parquet")):
        arrays: dict[str, list[np.ndarray[Any, np.dtype[np.uint16]]]] = {"train": [], "validation": []}
        for ids, texts in _batches(path):
            for id, found in zip(ids, encode(texts), strict=True):
                found.append(eos)
                arrays["validation" if _held_out(id) else "train"].append(np.array(found, np.uint16))
        for split, parts in arrays.items():
            joined = np.concatenate(parts or [np.empty(0, np.uint16)])
            joined.tofile(out / f"{split}-{path.stem}.ids")
            tokens += len(joined)
    return {"seconds": time.process_time() - started, "tokens": tokens}


def _datatrove(shards: Path, tokenizer: Path, out: Path) -> dict[str, float]:
    from datatrove.data import Document
    from datatrove.pipeline.tokens import DocumentTokenizer

    step = DocumentTokenizer(
        str(out), str(tokenizer / "tokenizer.json"), eos_token=EOS, shuffle_documents=False, save_final_metadata=False
    )
    assert step.tokenizer  # it loads now
    started = time.process_time()
    for number, path in enumerate(sorted(shards.glob("*.parquet"))):
        step.run((Document(text=text, id="") for _, texts in _batches(path) for text in texts), rank=number)
    seconds = time.process_time() - started
    return {"seconds": seconds, "tokens": sum(path.stat().st_size for path in out.glob("*.ds")) // 2}


def _batches(path: Path) -> Iterator[tuple[list[str], list[str]]]:
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, ["id", "text"], use_threads=False)
            yield table["id"].to_pylist(), table["text"].to_pylist()


def _held_out(document: str) -> bool:
    drawn = hashlib.sha256(f"validation {document}".encode()).digest()
    return int.from_bytes(drawn[:8]) < 0.01 * 2.0**64


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], *map(Path, sys.argv[2:5]))))
