"""More tokens for the vocabulary of a base, learned on the documents that it is trained on.

The base's own normalizer and pre-tokenizer cut the sample into words, its merges cut those into tokens, and further
merges are learned over these (bpe/extend.py). They come after its merges, and their tokens after its ids. Everything
else stays: the ids of all other tokens, special and added ones, the settings, the chat template.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.tokenizer import (
    HOSTILE,
    NotExtendedError,
    copy_tokenizer,
    load_tokenizer,
    new_tokens,
    other_ids,
    tokenizer_digest,
)
from storage.artifact import Artifact
from storage.errors import DamagedArtifact, SourceError, TokenizerMismatch
from tasks.stage.display.pages import markdown_table
from tasks.stage.output import Output
from tasks.tokenizer.bpe.alphabet import BYTE_SYMBOLS, unspell
from tasks.tokenizer.config import TokenizerConfig
from tasks.tokenizer.load import load_for_documents

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from tasks.tokenizer.bpe.extend import Merge
    from tasks.tokenizer.report import Measured
    from tasks.tokenizer.sample import Sample

SHOWN = 40  # of the new tokens, the most frequent
NOT_PLAIN = ("byte_fallback", "dropout", "continuing_subword_prefix", "end_of_word_suffix")  # settings of a BPE


def check_extendable(folder: Path) -> None:
    """Raises SourceError for a base whose tokenizer isn't byte-level BPE, the only kind that new tokens are learned
    for."""
    from tasks.tokenizer.encoder.tables import read_settings

    if problem := _obstacle(read_settings(folder)):
        raise SourceError(
            f"The tokenizer of the base {problem}, but new tokens can be learned only for byte-level BPE, such as "
            "GPT-2's, Llama 3's and Qwen's.",
            "Leave out tokenizer.extend to train with the base's own tokens, or choose another base.",
        )


def extend(config: TokenizerConfig, documents: Artifact, base: Artifact, out: Output) -> None:
    """Learn `config.extend` further tokens for the tokenizer of a base, write it, prove it, and report.

    Raises SourceError for a tokenizer of another kind, EmptyOutput without text, and TokenizerMismatch if a text would
    get other ids than those that its new tokens are made of.
    """
    from tasks.tokenizer.bpe.extend import extended_settings, learn_further
    from tasks.tokenizer.encoder.tables import read_settings
    from tasks.tokenizer.sample import draw_sample

    check_extendable(base.path)
    assert config.extend is not None
    old = load_for_documents(base.path)
    sample = draw_sample(config, documents.files("*.parquet"), out, base.path)
    merges = learn_further(old, sample.pretokens, number=config.extend, min_frequency=config.min_frequency)
    if not merges:
        raise SourceError(
            f"No new token can be learned: no pair of the base's tokens occurs {config.min_frequency} times within the "
            "words of the documents.",
            "Give more documents, or leave out tokenizer.extend.",
        )
    copy_tokenizer(base.path, out.path)
    settings = extended_settings(read_settings(base.path), merges)
    (out.path / "tokenizer.json").write_text(json.dumps(settings, indent=2, ensure_ascii=False), encoding="utf-8")
    measured = [text for texts in sample.measured.values() for text in texts]
    prove_extension(base.path, out.path, measured)
    _report(config, old, load_for_documents(out.path), sample, merges, out)


def prove_extension(base: Path, folder: Path, texts: Iterable[str] = ()) -> None:
    """Check on hostile texts, on the text of each added token, and on `texts`, that a tokenizer gives the ids of a
    base's once its new tokens are replaced by what they join, and decodes to the same text.

    Raises TokenizerMismatch, and DamagedArtifact for one that has other tokens or settings.
    """
    from tasks.tokenizer.proof import HARD_TEXTS, UTF8_BYTES

    try:
        pieces = new_tokens(base, folder)
    except NotExtendedError as error:
        raise DamagedArtifact(f"The tokenizer doesn't extend the base's: {error}.", "Learn it again.") from error
    old, new = load_for_documents(base), load_for_documents(folder)
    added = old.get_added_tokens_decoder()
    if {id: str(token) for id, token in added.items()} != {
        id: str(token) for id, token in new.get_added_tokens_decoder().items()
    }:
        raise DamagedArtifact("The extended tokenizer changes an added token.", "This is a bug; nothing was published.")
    names = [token.content for token in added.values()]
    for text in (*HARD_TEXTS, UTF8_BYTES, *HOSTILE, *names, " ".join(names), *texts):
        ids, before = new.encode(text).ids, old.encode(text).ids
        decoded = [each.decode(found, skip_special_tokens=False) for each, found in ((new, ids), (old, before))]
        if [part for id in ids for part in pieces.get(id, [id])] != before or decoded[0] != decoded[1]:
            raise TokenizerMismatch(
                f"With new tokens, {text[:40]!r} would get other ids than those that they are made of.",
                "Leave out tokenizer.extend, and report the name of the base.",
            )
    if find_spec("transformers") and (other := other_ids(load_tokenizer(folder), _plain(folder))) is not None:
        raise TokenizerMismatch(
            f"transformers gives {other[:40]!r} other ids than tokenizers with the new tokens.",
            "Leave out tokenizer.extend, and report the name of the base.",
        )


def _plain(folder: Path) -> Tokenizer:
    tokenizer = load_for_documents(folder)
    tokenizer.encode_special_tokens = False
    return tokenizer


def _obstacle(settings: Mapping[str, Any]) -> str:
    """Why no tokens can be added to those of a parsed tokenizer.json, as the end of a sentence. Empty if some can."""
    model = settings["model"]
    if model.get("type") != "BPE":
        return f"is a {model.get('type')}"
    if used := [name for name in NOT_PLAIN if model.get(name)]:
        sentence_piece = " of SentencePiece's form, as Llama 2's and Gemma's" if used[0] == "byte_fallback" else ""
        return f"is a BPE with {used[0]}{sentence_piece}"
    if not all("ByteLevel" in _kinds(settings.get(name)) for name in ("pre_tokenizer", "decoder")):
        return "doesn't map bytes to characters"
    lacking = sum(symbol not in model["vocab"] for symbol in BYTE_SYMBOLS)
    return f"has no token for {lacking} of the 256 bytes" if lacking else ""


def _kinds(step: Mapping[str, Any] | None) -> set[str]:
    """The kinds of a step of a tokenizer.json and of the steps within it."""
    if not step:
        return set()
    within = [*step.get("pretokenizers", []), *step.get("decoders", [])]
    return {step["type"]}.union(*map(_kinds, within))


def _report(
    config: TokenizerConfig, old: Tokenizer, new: Tokenizer, sample: Sample, merges: list[Merge], out: Output
) -> None:
    from tasks.tokenizer.report import REPORT, measure

    if len(merges) < (config.extend or 0):
        out.warn(
            f"the sample gave only {len(merges):,} of {config.extend:,} new tokens: no frequent pair was left to merge"
        )
    before = measure(lambda text: old.encode(text).ids, sample.measured)
    after = measure(lambda text: new.encode(text).ids, sample.measured)
    vocabulary = new.get_vocab()
    counts = {merge.token: after.ids[vocabulary[merge.token]] for merge in merges}
    used = sum(1 for count in counts.values() if count)
    sizes = [each.bytes.total() / each.tokens.total() for each in (before, after)]
    size = max(vocabulary.values()) + 1
    out.count(
        vocab_size=size,
        new_tokens=len(merges),
        new_tokens_used=used,
        sample_bytes=sum(sample.bytes.values()),
        bytes_per_token_before=round(sizes[0], 4),
        bytes_per_token=round(sizes[1], 4),
        tokenizer_digest=tokenizer_digest(out.path),
        summary=f"{len(merges):,} new tokens, {size:,} ids, {sizes[0]:.2f} → {sizes[1]:.2f} bytes a token",
    )
    tables = {
        "Bytes per token": _sources(sample, before, after),
        "New tokens": [
            {
                "asked for": config.extend,
                "learned": len(merges),
                "of these, in the measured text": used,
                "their share of its tokens": f"{sum(counts.values()) / after.tokens.total():.1%}",
                "count of the last in the sample": merges[-1].times,
            }
        ],
        "Most frequent new tokens in the measured text": _commonest(vocabulary, merges, counts),
    }
    for title, rows in tables.items():
        out.table(title, rows)
    parts = [f"## {title}\n\n{markdown_table(rows)}\n" for title, rows in tables.items()]
    (out.path / REPORT).write_text("\n".join(["# Tokenizer report\n", *parts]), encoding="utf-8")
    if config.compare:
        from tasks.tokenizer.report import publish_comparison

        publish_comparison(new, config, sample.measured, out)


def _sources(sample: Sample, before: Measured, after: Measured) -> list[dict[str, Any]]:
    """Bytes per token of each source and of all, with the base's tokenizer and with the new tokens."""
    rows: list[dict[str, Any]] = [
        {
            "source": source,
            "training bytes": sample.bytes[source],
            "measured bytes": after.bytes[source],
            "of these, in training": sample.common[source],
            "before": before.bytes_per_token(source),
            "after": after.bytes_per_token(source),
        }
        for source in sample.measured
    ]
    whole = {name: sum(row[name] for row in rows) for name in list(rows[0])[1:4]}
    sizes = [round(each.bytes.total() / each.tokens.total(), 3) for each in (before, after)]
    return [*rows, {"source": "all", **whole, "before": sizes[0], "after": sizes[1]}]


def _commonest(vocabulary: Mapping[str, int], merges: list[Merge], counts: Mapping[str, int]) -> list[dict[str, Any]]:
    from tasks.tokenizer.words import show

    def shown(token: str) -> str:
        return show(unspell(token) or b"")

    ordered = sorted(merges, key=lambda merge: (-counts[merge.token], vocabulary[merge.token]))
    return [
        {
            "token": shown(merge.token),
            "id": vocabulary[merge.token],
            "joins": f"{shown(merge.left)} {shown(merge.right)}",
            "count": counts[merge.token],
            "count in the sample": merge.times,
        }
        for merge in ordered[:SHOWN]
    ]
