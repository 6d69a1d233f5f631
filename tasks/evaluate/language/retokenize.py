"""Re-encodes held-out documents for a model with another tokenizer than the pipeline's, such as a third-party model.

Token shards don't hold text, but a byte-level vocabulary loses none, so the documents are spelled out and encoded
again. The number of bytes must stay the same, so that bits per byte are of the same text.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from models.tokenizer import load_tokenizer
from storage.errors import TokenizerMismatch
from storage.shards.arrays import Int64
from storage.shards.token_sources import SUFFIX
from storage.shards.tokens import TokenShard, TokenWriter, open_tokens

TOGETHER = 256  # documents decoded and encoded at a time


def translate(shards: Sequence[Path], written_with: Path, model: Path, digest: str, folder: Path) -> list[Path]:
    """Write token shards of the same documents and sources, for the tokenizer of `model` with the digest `digest`, to
    `folder`.

    Raises TokenizerMismatch if the tokenizer `written_with` can't spell the text of the shards.
    """
    theirs, ours = load_tokenizer(model), load_tokenizer(written_with)
    encoder, decoder = theirs.backend_tokenizer, ours.backend_tokenizer
    encoder.encode_special_tokens = True  # a document that mentions <|endoftext|> doesn't end there
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for path in shards:
        shard, size = open_tokens(path), 0
        target = folder / path.name
        vocabulary, end = max(theirs.get_vocab().values()) + 1, int(theirs.eos_token_id)
        with TokenWriter(target, vocab_size=vocabulary, eos_id=end, tokenizer_digest=digest) as writer:
            for documents in _documents(shard):
                texts = decoder.decode_batch(documents, skip_special_tokens=False)
                ids = [[*one.ids, end] for one in encoder.encode_batch(texts, add_special_tokens=False)]
                bytes_here = sum(len(text.encode()) for text in texts)
                flat: Int64 = np.array([id for document in ids for id in document], np.int64)
                writer.add(flat, np.array([len(document) for document in ids]), text_bytes=bytes_here)
                size += bytes_here
            if size != shard.header.text_bytes:
                raise TokenizerMismatch(
                    f"{path.name} was made from {shard.header.text_bytes:,} bytes of text, but its tokens spell "
                    f"{size:,}.",
                    "Its tokenizer changes text, so a model with another tokenizer can't be measured on it.",
                )
        sources = path.with_suffix(SUFFIX)
        if sources.is_file():
            target.with_suffix(SUFFIX).write_bytes(sources.read_bytes())
        written.append(target.resolve())
    return written


def _documents(shard: TokenShard) -> Iterator[list[list[int]]]:
    """Yields the ids of some documents at a time, without the one that ends each."""
    starts = shard.starts.astype(np.int64).tolist()
    for first in range(0, len(starts) - 1, TOGETHER):
        borders = starts[first : first + TOGETHER + 1]
        yield [shard.ids[a : b - 1].tolist() for a, b in itertools.pairwise(borders)]
