"""The table of families, in the order in which their rules are tried, and what they add up to for the filter.

Each family's signals are an artifact of their own, so adding a family measures only that one. The profile's own signals
are families too, after those of the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from storage.artifact import Artifact
from storage.shards.arrays import Bool
from tasks.filter.code.family import FAMILY as CODE
from tasks.filter.config import FilterConfig
from tasks.filter.contamination.family import FAMILY as CONTAMINATION
from tasks.filter.family import PASSED, Family, Mender, Spared
from tasks.filter.form.family import FAMILY as FORM
from tasks.filter.language.family import FAMILY as LANGUAGE
from tasks.filter.lists.family import FAMILY as LISTS
from tasks.filter.mathematics.family import FAMILY as MATHEMATICS
from tasks.filter.perplexity.family import FAMILY as PERPLEXITY
from tasks.filter.pii.family import FAMILY as PII
from tasks.filter.pii_metadata.family import FAMILY as METADATA
from tasks.filter.quality.family import FAMILY as QUALITY
from tasks.filter.rules import Rule, Where, belongs
from tasks.filter.semantic.family import FAMILY as SEMANTIC
from tasks.filter.signals.family import named_families
from tasks.filter.templates.family import FAMILY as TEMPLATES
from tasks.filter.toxicity.family import FAMILY as TOXICITY
from tasks.stage.config import StageConfig
from tasks.stage.output import Output
from tasks.stage.runtime import Runtime

FAMILIES: tuple[Family, ...] = (
    LANGUAGE,
    FORM,
    LISTS,
    CODE,
    MATHEMATICS,
    TEMPLATES,
    QUALITY,
    PERPLEXITY,
    TOXICITY,
    PII,
    METADATA,
    CONTAMINATION,
    SEMANTIC,
)


def families_of(config: FilterConfig) -> tuple[Family, ...]:
    """The families of the table, then those that the config names."""
    return (*FAMILIES, *named_families(config))


def first_and_last(config: FilterConfig) -> tuple[list[Family], list[Family]]:
    """Split the families into those measured first, and those of `measured_last` that are switched on, which are
    measured for the documents that pass the rules of the first."""
    first = [family for family in families_of(config) if family.name not in config.measured_last]
    last = [family for family in families_of(config) if family.name in config.measured_last]
    return first, [family for family in last if family.measured_by(*family.sections(config)) is not None]


def signal_configs(config: FilterConfig) -> dict[str, StageConfig]:
    """The config of the signals of every family that has a rule, by the family's name."""
    configs = {family.name: family.measured_by(*family.sections(config)) for family in families_of(config)}
    return {name: measuring for name, measuring in configs.items() if measuring is not None}


def first_rules(config: FilterConfig) -> list[Rule]:
    """The rules of the families that are measured first, in the order in which they are tried."""
    first, _ = first_and_last(config)
    return _in_turn(config, first)


def rules(config: FilterConfig) -> list[Rule]:
    """Every rule of the config, in the order in which they are tried. The rules of families that are measured last come
    last, and apply only to the documents that pass all others."""
    first, last = first_and_last(config)
    return [*_in_turn(config, first), *(Where(rule, passes_first_rules) for rule in _in_turn(config, last))]


def passes_first_rules(signals: pa.RecordBatch) -> Bool:
    """Mark the documents for which the families measured last have signals."""
    passed: Bool = signals[PASSED].to_numpy(zero_copy_only=False)
    return passed


def _in_turn(config: FilterConfig, families: Iterable[Family]) -> list[Rule]:
    rules = [rule for family in families for rule in family.rules(*family.sections(config))]
    for family in families_of(config):
        spared = family.spares(*family.sections(config)) if family.spares else None
        if spared is not None:
            rules = [_sparing(spared, rule) for rule in rules]
    return sorted(rules, key=lambda rule: rule.turn)


def _sparing(spared: Spared, rule: Rule) -> Rule:
    if not belongs(rule, spared.groups):
        return rule
    return Where(rule, lambda signals: ~spared.documents(signals))


def menders(config: FilterConfig) -> list[Mender]:
    """Everything that changes kept texts, in the order of application."""
    menders = [family.mender(*family.sections(config)) for family in families_of(config) if family.mender]
    return sorted((mender for mender in menders if mender is not None), key=lambda mender: mender.turn)


def fingerprints(config: FilterConfig) -> dict[str, str]:
    """Digests of what deciding reads outside the store. Raises ConfigError for a source that can't be read."""
    return {
        name: digest
        for family in families_of(config)
        if family.fingerprints
        for name, digest in family.fingerprints(*family.sections(config)).items()
    }


def sources(config: FilterConfig) -> dict[str, str]:
    """Digests of all that measuring and deciding read outside the store. Raises ConfigError, SourceError."""
    measuring = {
        f"{family.name} {name}": digest
        for family in families_of(config)
        for name, digest in family.sources(config).items()
    }
    return {**measuring, **fingerprints(config)}


def check_here(config: FilterConfig, runtime: Runtime) -> None:
    """Raise a GristmillError if this machine lacks what measuring needs."""
    for family in families_of(config):
        if family.check_here:
            family.check_here(*family.sections(config), runtime)


def redact(config: FilterConfig, texts: list[str]) -> list[str]:
    """The texts as people may see them in reports, measured here, as these texts may not have been measured before."""
    for family in families_of(config):
        if family.redact:
            texts = family.redact(*family.sections(config), texts)
    return texts


def finish(config: FilterConfig, measured: Mapping[str, Artifact], out: Output) -> None:
    """Add each family's own files to the filter's artifact, beside documents and ledger."""
    for family in families_of(config):
        if family.finish and family.name in measured:
            family.finish(*family.sections(config), measured[family.name], out)
