"""The measures of an ablation, read from what `evaluate`'s parts left: documents with their loss, questions with the
likelihoods of their choices."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.artifact import Artifact
from storage.errors import ConfigError, DamagedArtifact, EmptyOutput, make_again
from storage.shards.arrays import Bool
from storage.shards.lines import read_json_lines
from tasks.ablate.config import Target
from tasks.ablate.effects import Measure
from tasks.ablate.held_out import LEAST, Fair
from tasks.significance.answered import OF_TASK
from tasks.significance.estimate import Values
from tasks.significance.texts import DOCUMENTS

HELD_OUT, TARGET = "held-out text", "target"
RIGHT_ANSWERS = ": right answers"

Runs = Sequence[Sequence[Artifact]]  # by arm and seed


def text_measures(runs: Runs, fair: Fair | None) -> list[Measure]:
    """Bits per byte of the held-out text, first of all of it, then by source, and of the profile's files. Only
    documents that every model has measured count, and only those that are `fair`, if that is known. Raises EmptyOutput
    for too few, DamagedArtifact."""
    tables = [[_read(artifact) for artifact in seeds] for seeds in runs]
    names, bits, sizes = _aligned(tables)
    held_out = np.array([of_held_out for of_held_out, _, _ in names], bool)
    number = np.array([number for _, _, number in names], np.int64)
    comparable, kept = held_out.copy(), np.ones(len(names), bool)
    if fair is not None:
        comparable[held_out] = fair.comparable[number[held_out]]
        kept[held_out] = fair.kept_by_all[number[held_out]]
    whole = _measure(HELD_OUT, bits, sizes, comparable & kept)
    if whole is None:
        raise EmptyOutput(
            f"All models have fewer than {LEAST} held-out texts in common.", "Give more documents, or more benchmarks."
        )
    found: list[Measure | None] = [whole]
    by_source = Counter(text for (_, text, _), chosen in zip(names, comparable & kept, strict=True) if chosen)
    text_of = np.array([text for _, text, _ in names])
    if len(by_source) > 1:
        for source in sorted(by_source):
            found.append(_measure(source, bits, sizes, comparable & kept & (text_of == source)))
    found.append(_measure("held-out text that an arm leaves out", bits, sizes, comparable & ~kept))
    for name in sorted(set(text_of[~held_out].tolist())):
        found.append(_measure(f"file {name}", bits, sizes, ~held_out & (text_of == name)))
    return [measure for measure in found if measure is not None]


def _measure(name: str, bits: Values, sizes: Values, chosen: Bool) -> Measure | None:
    """A measure over chosen documents. None for too few."""
    if chosen.sum() < (1 if name.startswith("file ") else LEAST):
        return None
    return Measure(name, bits[..., chosen], sizes[..., chosen])


def target_of(measures: Sequence[Measure], target: Target) -> Measure:
    """The bits per byte of a target: of the held-out text of some sources as if it were one, or the weighted mean of
    sources, files and the right answers of benchmarks.

    Raises ConfigError for what wasn't measured.
    """
    parts = components(measures, target)
    shape = parts[0].above.shape[:2]
    weights = (
        [1.0] * len(parts)
        if isinstance(target, list)
        else [weight / sum(target.values()) for weight in target.values()]
    )
    above, below = [], []
    for part, weight in zip(parts, weights, strict=True):
        sizes = np.broadcast_to(part.below, part.above.shape)
        scale = weight if isinstance(target, list) else weight / sizes.sum(-1, keepdims=True)
        above.append(part.above * scale)
        below.append(sizes * np.broadcast_to(scale, (*shape, 1)))
    return Measure(TARGET, np.concatenate(above, -1), np.concatenate(below, -1))


def components(measures: Sequence[Measure], target: Target) -> list[Measure]:
    """The measures that a target is made of, in its order. Raises ConfigError for one that is missing."""
    known = {measure.name: measure for measure in measures}
    found = [known.get(name) or known.get(f"file {name}") or known.get(name + RIGHT_ANSWERS) for name in target]
    if missing := [name for name, one in zip(target, found, strict=True) if one is None]:
        raise ConfigError(
            f"The target {', '.join(missing)} has fewer than {LEAST} held-out documents, or wasn't measured.",
            "Raise tokenize.validation_share, or leave it out of the target.",
        )
    return [one for one in found if one is not None]


def _read(artifact: Artifact) -> pa.Table:
    try:
        table = pq.read_table(artifact.file(DOCUMENTS), columns=["held_out", "text", "number", "bytes", "nats"])
    except (pa.ArrowException, OSError) as error:
        raise DamagedArtifact(
            f"The {DOCUMENTS} of {artifact.location} can't be read.", make_again("evaluate")
        ) from error
    return table.filter(pc.greater(table["bytes"], 0))


def _aligned(tables: Sequence[Sequence[pa.Table]]) -> tuple[list[tuple[bool, str, int]], Values, Values]:
    """The documents that all runs measured, and their bits and bytes, each of shape (arms, seeds, documents). Models
    with different tokenizers may cut the end of the text at another document."""
    read = [
        [
            dict(
                zip(
                    zip(*(table[name].to_pylist() for name in ("held_out", "text", "number")), strict=True),
                    zip(table["nats"].to_pylist(), table["bytes"].to_pylist(), strict=True),
                    strict=True,
                )
            )
            for table in seeds
        ]
        for seeds in tables
    ]
    common = set.intersection(*(set(one) for seeds in read for one in seeds))
    names = [name for name in read[0][0] if name in common]
    values = np.array([[[one[name] for name in names] for one in seeds] for seeds in read], float)
    values = values.reshape(len(read), len(read[0]), len(names), 2)
    return names, values[..., 0] / math.log(2), values[..., 1]


def answer_measures(label: str, runs: Runs) -> list[Measure]:
    """A benchmark's measures: bits per byte of the right answers, which also tells small models apart, and the share of
    questions whose right answer is the likeliest, or of passed ones. Only of questions with such answers."""
    read = [[_items(artifact) for artifact in seeds] for seeds in runs]
    common = set.intersection(*(set(one) for seeds in read for one in seeds))
    ids = [name for name in read[0][0] if name in common]
    likely = [name for name in ids if _right(read[0][0][name]) is not None]
    found = []
    if len(likely) >= LEAST:
        rights = np.array([[[_right(one[name]) for name in likely] for one in seeds] for seeds in read], float)
        found.append(Measure(f"{label}{RIGHT_ANSWERS}", rights[..., 0], rights[..., 1], unit="questions"))
        correct = [[[_correct(one[name]) for name in likely] for one in seeds] for seeds in read]
        ones = np.ones(len(likely))
        found.append(
            Measure(f"{label}: accuracy", np.array(correct, float), ones, lower_is_better=False, unit="questions")
        )
    return found


def _items(artifact: Artifact) -> Mapping[str, Mapping[str, Any]]:
    return {row["id"]: row for row in read_json_lines(artifact.file(OF_TASK))}


def _right(row: Mapping[str, Any]) -> tuple[float, int] | None:
    """The bits and the bytes of the right answer, or None for a question without likelihoods."""
    likelihoods, sizes, target = row.get("likelihoods"), row.get("bytes"), row.get("target")
    if not likelihoods or not sizes:
        return None
    place = target if isinstance(target, int) else 0 if len(likelihoods) == 1 else None
    if place is None or not 0 <= place < len(likelihoods):
        return None
    return -likelihoods[place] / math.log(2), sizes[place]


def _correct(row: Mapping[str, Any]) -> float:
    """Whether the right choice is the likeliest a byte, as in `acc_norm`."""
    shares = [likelihood / max(1, size) for likelihood, size in zip(row["likelihoods"], row["bytes"], strict=True)]
    target = row["target"]
    return float(isinstance(target, int) and shares.index(max(shares)) == target)
