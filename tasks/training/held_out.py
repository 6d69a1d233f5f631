"""Held-out text as token shards, for bits per byte and for the proof of an export.

If a profile pretrains, it is the validation split of its documents. A profile that starts from a base tokenizes no
documents. There it is the benchmarks' questions with their right answers, tokenized when they are read.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from models.tokenizer import load_tokenizer, text_ids
from storage.artifact import Artifact
from storage.errors import DamagedArtifact, make_again
from storage.shards.lines import read_json_lines
from storage.shards.token_sources import SUFFIX, write_sources
from storage.shards.tokens import write_tokens
from tasks.training.model_folder import check_shards


def has_questions(text: Artifact) -> bool:
    """Whether held-out text is benchmarks' questions, which are not tokenized yet."""
    return bool(text.names("*.jsonl"))


def held_out_shards(text: Artifact, model: Path, digest: str, scratch: Path) -> list[Path]:
    """The token shards of `text`: its own, or one of its questions, tokenized by the model's tokenizer and with the
    benchmarks as sources.

    Raises TokenizerMismatch, DamagedArtifact.
    """
    if not has_questions(text):
        return check_shards(text, digest)
    tokenizer = load_tokenizer(model)
    sourced = [(path.stem, line) for path in text.files("*.jsonl") for line in _answered_questions(path)]
    texts = [line for _, line in sourced]
    ids = [[*text_ids(tokenizer, line, begun=False), tokenizer.eos_token_id] for line in texts]
    path = scratch / "held_out" / "00000.tokens"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_tokens(
        path,
        [np.array(line, np.uint32) for line in ids],
        vocab_size=max(tokenizer.get_vocab().values()) + 1,
        eos_id=tokenizer.eos_token_id,
        tokenizer_digest=digest,
        text_bytes=sum(len(line.encode()) for line in texts),
    )
    write_sources(path.with_suffix(SUFFIX), (source for source, _ in sourced))
    return [path.resolve()]


def _answered_questions(path: Path) -> list[str]:
    """Each question of a benchmark with its right answer."""
    try:
        return [f"{row['query']}{row['choices'][row['gold']]}" for row in read_json_lines(path)]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise DamagedArtifact(
            f"{path.name} has an invalid question ({type(error).__name__}: {error}).", make_again("download")
        ) from error
