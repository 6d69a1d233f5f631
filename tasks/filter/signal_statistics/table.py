"""The spread of every signal in each language, and the thresholds that it suggests.

FineWeb 2 (Penedo et al. 2025) transfers thresholds that are known to be good in English to other languages by their
place in the distribution. Two of its methods are here: the same quantile as in the reference language, and a tail of a
fixed share of the documents. Which one is better needs an experiment per rule. The table only suggests.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import yaml
from pydantic import Field

from storage.artifact import Artifact
from storage.errors import ConfigError
from storage.shards.arrays import Float64
from storage.shards.documents import read_batches
from storage.shards.lines import write_json_lines
from tasks.filter.form.languages.thresholds import GROUPS
from tasks.filter.rules import Bound, Rule, Where
from tasks.filter.side_files import read_signals
from tasks.stage.config import StageConfig
from tasks.stage.output import Output

LANGUAGE, ID = "language", "id"
QUANTILES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
FOLDER = "measures"
DIGITS = 4  # of suggested thresholds
Values = Mapping[str, Float64]  # by signal, NaN for a document without a value


class MeasuresConfig(StageConfig):
    """The spread of signals in each language, and the thresholds it suggests (Penedo et al. 2025, FineWeb 2)."""

    reference: str = Field(
        "en", description="language of the profile's thresholds. Other languages get those at the same quantiles"
    )
    tail: float = Field(
        0.1, gt=0, lt=0.5, description="share of a language's documents to remove by the second kind of threshold"
    )
    min_documents: int = Field(100, ge=2, description="minimum documents of a language. With fewer it is only counted")
    sample: int = Field(
        10_000, ge=100, description="documents of each language to measure, those with the smallest IDs"
    )


def write_measures(
    config: MeasuresConfig, tests: Sequence[Rule], documents: Artifact, measured: Mapping[str, Artifact], out: Output
) -> None:
    """Write measures/signals.jsonl (a line per language and signal), measures/thresholds.jsonl (a line per language and
    rule with a number) and measures/thresholds.yaml, the thresholds at the reference's quantiles as `filter.languages`.

    Raises ConfigError if languages aren't measured, or the reference has too few documents.
    """
    samples, counts = _sample(config, documents, measured)
    if len(samples.get(config.reference, {ID: ()})[ID]) < config.min_documents:
        raise ConfigError(
            f"Only {counts[config.reference]:,} documents are in {config.reference}, the reference of `measures`.",
            "Name another language in filter.measures.reference, or lower min_documents.",
        )
    large = {language: values for language, values in samples.items() if counts[language] >= config.min_documents}
    rules = [rule for rule in map(_bound, tests) if rule is not None]
    thresholds = [
        line
        for language, values in sorted(large.items())
        for rule in rules
        if (line := _threshold(config, rule, language, values, large[config.reference])) is not None
    ]
    write_json_lines(out.path / FOLDER / "signals.jsonl", _spread(large, counts))
    write_json_lines(out.path / FOLDER / "thresholds.jsonl", thresholds)
    by_language: dict[str, dict[str, dict[str, float]]] = {}
    for line in thresholds:
        group, _, name = line["rule"].rpartition(".")
        if group in GROUPS and line["language"] != config.reference:
            by_language.setdefault(line["language"], {}).setdefault(group, {})[name] = line["same_quantile"]
    text = yaml.safe_dump(by_language, sort_keys=True, allow_unicode=True)
    (out.path / FOLDER / "thresholds.yaml").write_text(text, encoding="utf-8")
    out.count(measured_languages=len(large))


def _bound(rule: Rule) -> Bound | None:
    while isinstance(rule, Where):
        rule = rule.rule
    return rule if isinstance(rule, Bound) and rule.name.count(".") == 1 else None


def _sample(
    config: MeasuresConfig, documents: Artifact, measured: Mapping[str, Artifact]
) -> tuple[dict[str, Values], Counter[str]]:
    """For each language the signals of the documents with the smallest IDs, and its number of documents.

    Independent of the order of the shards. Takes memory for twice the sample of each language.
    """
    kept: dict[str, pa.Table] = {}
    counts: Counter[str] = Counter()
    side_files = [artifact.files("*.parquet") for artifact in measured.values()]
    for number, shard in enumerate(documents.files("*.parquet")):
        readers = [read_signals(files[number]) for files in side_files]
        for _, batch in read_batches(shard, [ID]):
            columns = _numbers([next(reader) for reader in readers])
            table = pa.table({ID: batch[ID], **columns})
            for language in pc.unique(columns[LANGUAGE]).drop_null().to_pylist():
                mine = table.filter(pc.equal(columns[LANGUAGE], language)).drop_columns([LANGUAGE])
                counts[language] += mine.num_rows
                joined = pa.concat_tables([kept[language], mine]) if language in kept else mine
                kept[language] = _smallest(joined, config.sample) if joined.num_rows > 2 * config.sample else joined
    return {language: _values(_smallest(table, config.sample)) for language, table in kept.items()}, counts


def _numbers(signals: Sequence[pa.RecordBatch]) -> dict[str, pa.Array]:
    """The numeric columns, as floats, and the language."""
    columns = {
        field.name: column.cast(pa.float64())
        for batch in signals
        for field, column in zip(batch.schema, batch.columns, strict=True)
        if pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
    }
    language = next((batch[LANGUAGE] for batch in signals if LANGUAGE in batch.schema.names), None)
    if language is None:
        raise ConfigError(
            "filter.measures needs the language of documents, which isn't measured.", "Set `filter.language`."
        )
    return {LANGUAGE: language, **columns}


def _smallest(table: pa.Table, most: int) -> pa.Table:
    return table.take(pc.sort_indices(table[ID])[:most])


def _values(table: pa.Table) -> Values:
    return {name: table[name].to_numpy() for name in table.schema.names}


def _spread(samples: Mapping[str, Values], counts: Counter[str]) -> list[dict[str, Any]]:
    lines = []
    for language, values in sorted(samples.items()):
        for signal, column in sorted(values.items()):
            known = np.empty(0) if signal == ID else column[~np.isnan(column)]
            if len(known):
                line = {"language": language, "documents": counts[language], "signal": signal, "measured": len(known)}
                line |= {"mean": _rounded(known.mean()), "deviation": _rounded(known.std())}
                quantiles = np.quantile(known, QUANTILES)
                lines.append(line | {f"q{q:g}": _rounded(at) for q, at in zip(QUANTILES, quantiles, strict=True)})
    return lines


def _threshold(
    config: MeasuresConfig, rule: Bound, language: str, values: Values, reference: Values
) -> dict[str, Any] | None:
    """The suggestions of both methods for a rule in a language, and the share that each would remove there."""
    if rule.signal not in values:
        return None
    mine, theirs = (each[rule.signal][~np.isnan(each[rule.signal])] for each in (values, reference))
    if not len(mine) or not len(theirs):
        return None
    removed = float(np.mean(_fails(rule, theirs, rule.threshold)))
    same, tail = (_at(rule, mine, share) for share in (removed, config.tail))
    return {
        "language": language,
        "rule": rule.name,
        "threshold": rule.threshold,
        "removes_in_reference": _rounded(removed),
        "removes": _rounded(float(np.mean(_fails(rule, mine, rule.threshold)))),
        "same_quantile": same,
        "same_quantile_removes": _rounded(float(np.mean(_fails(rule, mine, same)))),
        "tail": tail,
        "tail_removes": _rounded(float(np.mean(_fails(rule, mine, tail)))),
    }


def _fails(rule: Bound, values: Float64, threshold: float) -> Any:
    return values < threshold if rule.direction == "min" else values > threshold


def _at(rule: Bound, values: Float64, share: float) -> float:
    """The value that removes at most this share of the values: one of them, rounded to the side that removes fewer."""
    ordered = np.sort(values) if rule.direction == "min" else np.sort(values)[::-1]
    at = float(ordered[min(len(ordered) - 1, math.floor(share * len(ordered)))])
    if at == 0 or at.is_integer():
        return at
    scale = 10.0 ** (DIGITS - 1 - math.floor(math.log10(abs(at))))
    return float((math.floor if rule.direction == "min" else math.ceil)(at * scale) / scale)


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")
