"""The `tokenizer` stage: byte-level BPE, so that every text has ids and every id sequence has bytes.

Sennrich et al. 2016 over bytes, with the pre-tokenizer of GPT-2, GPT-4 or Llama 3 (patterns.py), in the
format of the `tokenizers` library: what is written loads in transformers, llama.cpp and most servers without our code.

Special tokens are control, never text. A document that holds the characters `<|endoftext|>` is encoded as those
characters (`load_for_documents`); only the pipeline itself adds an end-of-text id, and only the chat template's
rendering is parsed for special tokens. EOS is also BOS; neither is added by the tokenizer.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from models.tokenizer import CHAT_TEMPLATE_PATH, EOS, PAD, SPECIAL_TOKENS, load_tokenizer, tokenizer_digest
from storage.artifact import Artifact
from storage.documents import read_batches, read_documents
from storage.errors import DamagedArtifact, EmptyOutput, TokenizerMismatch
from tasks.output import Output
from tasks.shards import map_shards
from tasks.stage import stage
from tasks.tokenizer.config import BYTE_TOKENS, TokenizerConfig
from tasks.tokenizer.load import load_for_documents
from tasks.tokenizer.patterns import PatternName, pre_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from tasks.tokenizer.bpe.pretokens import Pieces

PRETOKENS = "pretokens.npz"
MEASURED_BYTES = 1_000_000  # of each source, for the table of bytes a token
HARD_TEXTS = (
    "".join(map(chr, range(0x250))),  # all of ASCII with NUL and controls, and every Latin letter
    "\x00\x00a\x00",
    "  leading, trailing  \r\n\t\n\n  ",
    "Ελληνικά русский עברית العربية हिन्दी 中文 日本語 한국어 ไทย 👩‍👩‍👧‍👦🇫🇷 ﬁ Å é",
    "\ufeff\u200b\u202e\ufffd\U0010ffff",
    "don't we'll I'M 3.14159 1234567890 x = {'a': [1, 2]}  # code",
    " ".join(SPECIAL_TOKENS),
    "".join(SPECIAL_TOKENS),
)


@stage(version=2, name="tokenizer")
def train_tokenizer(config: TokenizerConfig, documents: Artifact, out: Output) -> None:
    """Learn a byte-level BPE vocabulary from a sample of each source, and prove that it loses nothing.

    Reads documents; writes the tokenizer's files with the chat template, as AutoTokenizer loads them. The sample is
    chosen by the hash of the document's id, so neither order, shards nor workers change a byte of the result.
    """
    shards = documents.files("*.parquet")
    sizes: Counter[str] = Counter()
    for result in map_shards(_measure, shards, out, "bytes-by-source"):
        sizes.update(result.counts)
    if not sizes:
        raise EmptyOutput("There is no document to train a tokenizer on.", "Look at the report of `filter`.")
    shares = {source: min(1.0, config.sample_bytes_per_source / size) for source, size in sizes.items() if size}
    tokenizer = _train(config, shards, shares, out)
    _write(tokenizer, out.path)
    loaded = load_for_documents(out.path)
    _prove(loaded, out.path)
    _report(loaded, config, shards, shares, out)


def _measure(shard: Path, folder: Path) -> dict[str, int]:
    sizes: Counter[str] = Counter()
    for document in read_documents(shard):
        sizes[document.source] += len(document.text.encode())
    return dict(sizes)


def _sample(shards: list[Path], shares: dict[str, float]) -> Iterator[tuple[str, str]]:
    """(source, text) of the documents whose id's hash falls into their source's share."""
    for shard in shards:
        for document in read_documents(shard):
            if _is_sampled(shares, document.id, document.source):
                yield document.source, document.text


def _is_sampled(shares: dict[str, float], identity: str, source: str) -> bool:
    drawn = hashlib.sha256(f"tokenizer {identity}".encode()).digest()
    return int.from_bytes(drawn[:8]) < shares.get(source, 0.0) * 2.0**64


def _train(config: TokenizerConfig, shards: list[Path], shares: dict[str, float], out: Output) -> Tokenizer:
    """What the trainer of `tokenizers` would make of the sample, byte for byte, in a fraction of its time: pre-tokens
    are counted shard by shard, merges are learned from the counts."""
    from tasks.tokenizer.bpe.pretokens import Pretokens, merge_pretokens
    from tasks.tokenizer.bpe.train import to_tokenizer, train

    counted = map_shards(partial(_count_shard, config.pattern, shares), shards, out, "pre-tokens", threads=True)
    words = merge_pretokens(Pretokens.load(shard.folder / PRETOKENS) for shard in counted)
    merges, vocabulary = train(
        *words, vocab_size=config.vocab_size, min_frequency=config.min_frequency, special_tokens=SPECIAL_TOKENS
    )
    return to_tokenizer(merges, vocabulary, SPECIAL_TOKENS, pre_tokenizer(config.pattern))


def _count_shard(pattern: PatternName, shares: dict[str, float], shard: Path, folder: Path) -> dict[str, int]:
    from tasks.tokenizer.bpe.pretokens import count_pretokens
    from tasks.tokenizer.split import Cut, Splitter

    def pieces(cut: Cut) -> Pieces:
        return cut.data, np.concatenate([np.zeros(1, np.int64), cut.ends])[:-1], cut.ends

    splitter = Splitter(pattern)
    texts = (
        batch["text"].filter(pa.array(map(partial(_is_sampled, shares), *_ids_and_sources(batch)), pa.bool_()))
        for _, batch in read_batches(shard, ["id", "source", "text"])
    )
    found = count_pretokens(pieces, (cut for column in texts for cut in splitter.split(column)))
    found.save(folder / PRETOKENS)
    return {"pretokens": int(found.counts.sum())}


def _ids_and_sources(batch: pa.RecordBatch) -> tuple[list[str], list[str]]:
    return batch["id"].to_pylist(), batch["source"].to_pylist()


def _write(tokenizer: Tokenizer, folder: Path) -> None:
    tokenizer.save(str(folder / "tokenizer.json"))
    shutil.copyfile(CHAT_TEMPLATE_PATH, folder / "chat_template.jinja")
    named = {"bos_token": EOS, "eos_token": EOS, "pad_token": PAD}
    turns = [token for token in SPECIAL_TOKENS if token not in named.values()]
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **named,
        "additional_special_tokens": turns,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1 << 30,  # the model's own limit counts, not the tokenizer's
    }
    _write_json(folder / "tokenizer_config.json", config)
    _write_json(folder / "special_tokens_map.json", {**named, "additional_special_tokens": turns})


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def _prove(tokenizer: Tokenizer, folder: Path) -> None:
    """Every byte has a token, every text comes back, special tokens are never text. Raises DamagedArtifact."""
    from tokenizers.pre_tokenizers import ByteLevel

    vocabulary = tokenizer.get_vocab()
    missing = [symbol for symbol in ByteLevel.alphabet() if symbol not in vocabulary]
    if missing:
        raise _unproved(f"has no token for {len(missing)} of the 256 bytes")
    if [vocabulary[token] for token in SPECIAL_TOKENS] != list(range(len(SPECIAL_TOKENS))):
        raise _unproved("does not give the special tokens their ids")
    for text in HARD_TEXTS:
        ids = tokenizer.encode(text).ids
        if min(ids) < len(SPECIAL_TOKENS):
            raise _unproved(f"parsed a special token out of plain text {text[:40]!r}")
        if tokenizer.decode(ids, skip_special_tokens=False) != text:
            raise _unproved(f"does not bring back {text[:40]!r}")
    transformers = load_tokenizer(folder)
    for text in HARD_TEXTS:
        if transformers.encode(text, split_special_tokens=True) != tokenizer.encode(text).ids:
            raise TokenizerMismatch(
                f"transformers encodes {text[:40]!r} otherwise than tokenizers.", "This is a defect; report it."
            )
    if transformers.convert_tokens_to_ids(EOS) != 0 or transformers.eos_token != EOS:
        raise _unproved("has lost its end-of-text token in transformers")


def _unproved(problem: str) -> DamagedArtifact:
    return DamagedArtifact(f"The trained tokenizer {problem}.", "This is a defect; nothing was published.")


def _report(
    tokenizer: Tokenizer, config: TokenizerConfig, shards: list[Path], shares: dict[str, float], out: Output
) -> None:
    size = tokenizer.get_vocab_size()
    if size < config.vocab_size:
        out.note(f"the sample gave {size:,} of {config.vocab_size:,} ids: no pair was left that came often enough")
    sampled: Counter[str] = Counter()
    measured: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    used: set[int] = set()
    for source, text in _sample(shards, shares):
        length = len(text.encode())
        sampled[source] += length
        if measured[source] < MEASURED_BYTES:
            ids = tokenizer.encode(text).ids
            measured[source] += length
            tokens[source] += len(ids)
            used.update(ids)
    out.count(
        vocab_size=size,
        vocabulary_used=len(used),
        sample_bytes=sum(sampled.values()),
        bytes_per_token=round(sum(measured.values()) / sum(tokens.values()), 4),
        tokenizer_digest=tokenizer_digest(out.path),
        summary=f"{size:,} ids, {sum(measured.values()) / sum(tokens.values()):.2f} bytes a token",
    )
    out.table(
        "Bytes per token",
        [
            {
                "source": source,
                "bytes learned from": sampled[source],
                "bytes measured": measured[source],
                "bytes per token": round(measured[source] / tokens[source], 3),
            }
            for source in sorted(tokens)
        ],
    )
    ordinary = size - len(SPECIAL_TOKENS)
    out.table(
        "Vocabulary",
        [{"ids": size, "special": len(SPECIAL_TOKENS), "bytes": BYTE_TOKENS, "merges": ordinary - BYTE_TOKENS,
          "used in the measured text": f"{len(used) / ordinary:.1%}"}],
    )  # fmt: skip
