"""Token shards and a tokenizer, made from the text of this tree: a GPU may be on a machine that has nothing else.

The documents, which are the tree's own pages and modules, are repeated in an order that a seed decides. Ids stay below
the size of the tokenizer, and the shards' vocabulary is that of the models, so that the loss has all its logits.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np

from benchmarks.measure import ROOT
from models.tokenizer import EOS, tokenizer_digest
from storage.artifact import Artifact
from storage.digests import list_files
from storage.shards.arrays import Int64
from storage.shards.documents import Document, write_documents
from storage.shards.tokens import TokenWriter
from tasks.stage.output import Output
from tasks.stage.runtime import DataRuntime, Runtime
from tasks.tokenizer import TokenizerConfig, load_for_documents, train_tokenizer

LEARNED = 4096  # ids of the tokenizer: the text is too small for more
VALIDATION = 0.02  # share of the tokens
SEED = 0
SEAL = "sealed.json"


def tree_texts() -> list[str]:
    """The pages and modules of the tree."""
    tree = ROOT.parent
    paths = [path for kind in ("*.md", "*.py") for path in tree.rglob(kind)]
    inside = (path for path in sorted(paths) if not any(part.startswith(".") for part in path.relative_to(tree).parts))
    return [path.read_text() for path in inside]


def make_tokens(folder: Path, *, vocab: int, tokens: int) -> tuple[Path, Path]:
    """Folders of token shards, with about `tokens` tokens, and of their tokenizer; made on the first call."""
    tokenizer, shards = folder / "tokenizer" / "out", folder / "tokens"
    if not is_whole(folder):
        shutil.rmtree(folder, ignore_errors=True)
        _make_tokenizer(folder / "tokenizer", min(LEARNED, vocab))
        encoder, digest = load_for_documents(tokenizer), tokenizer_digest(tokenizer)
        end = encoder.token_to_id(EOS)
        assert end is not None, "every tokenizer of ours has it"
        texts = tree_texts()
        documents = [
            (np.array([*encoded.ids, end]), len(text.encode()))
            for text, encoded in zip(texts, encoder.encode_batch(texts), strict=True)
        ]
        for split, share in (("train", 1.0), ("validation", VALIDATION)):
            path = shards / split / "00000.tokens"
            with TokenWriter(path, vocab_size=vocab, eos_id=end, tokenizer_digest=digest) as writer:
                _repeat(writer, documents, int(tokens * share))
        seal(folder)
    return shards, tokenizer


def is_whole(folder: Path) -> bool:
    """Whether a folder has what it had when it was sealed, byte for byte."""
    sealed = folder / SEAL
    return sealed.exists() and sealed.read_text() == _digests(folder)


def seal(folder: Path) -> None:
    """Note what a folder has: another run takes it only if it is the same."""
    (folder / SEAL).write_text(_digests(folder))


def _digests(folder: Path) -> str:
    digests = {path: file.sha256 for path, file in list_files(folder).items() if path != SEAL}
    return json.dumps(digests, indent=1, sort_keys=True)


def _make_tokenizer(folder: Path, size: int) -> None:
    rows = (Document.new(text, "tree") for text in tree_texts())
    write_documents(folder / "documents" / "00000.parquet", rows)
    out = Output.at(folder, runtime=Runtime(data=DataRuntime(workers=1)))
    train_tokenizer.function(TokenizerConfig(vocab_size=size), Artifact.at(folder / "documents"), out)


def _repeat(writer: TokenWriter, documents: list[tuple[Int64, int]], tokens: int) -> None:
    generator, written = np.random.default_rng(SEED), 0
    while written < tokens:
        for number in generator.permutation(len(documents)):
            ids, size = documents[number]
            writer.add(ids, np.array([len(ids)]), text_bytes=size)
            written += len(ids)
            if written >= tokens:
                return
