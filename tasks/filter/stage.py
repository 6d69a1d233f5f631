"""The filter stage: signals from the store, then verdicts by thresholds. Heavy imports wait until it runs."""

from __future__ import annotations

from collections.abc import Mapping

from storage.artifact import Artifact
from tasks.filter.config import FilterConfig
from tasks.filter.families import check_here as check_families_here
from tasks.filter.families import fingerprints, finish, rules, sources
from tasks.filter.measure import measure, parts
from tasks.filter.repair.stage import repair
from tasks.shards.adopted import check_documents, check_rows
from tasks.stage import stage
from tasks.stage.output import Output
from tasks.stage.runtime import Runtime


def check(config: FilterConfig, runtime: Runtime) -> None:
    """Raise ConfigError for a salt that can't be read, before the first stage of a run starts."""
    fingerprints(config)


def check_here(config: FilterConfig, runtime: Runtime) -> None:
    """Raise SourceError for a function or classifier that doesn't exist, ConfigError for a missing GPU."""
    check_families_here(config, runtime)


def check_adopted(config: FilterConfig, folder: Artifact, inputs: Mapping[str, Artifact]) -> None:
    """Check that a folder made elsewhere has documents in our layout, and the table of benchmark questions that
    evaluation reads. Raises DamagedArtifact, EmptyOutput."""
    check_documents(folder)
    if config.contamination is not None:
        check_rows(folder, "contamination", ("benchmark", "id", "ngrams", "found"))


@stage(
    version=5,
    name="filter",
    runtime=("data", "compute"),
    sources=sources,
    check=check,
    check_here=check_here,
    adopted=check_adopted,
    parts=parts,
)
def filter_documents(config: FilterConfig, documents: Artifact, benchmarks: Artifact, out: Output) -> None:
    """Keep the documents that pass every rule, with personal data in them and in their metadata replaced.

    Each family's signals are an artifact of their own, measured once. Those of `measured_last` are measured only for
    the documents that pass all other rules. With `repair`, texts are repaired before anything is measured. This stage
    only applies thresholds. It writes:

    - documents/
    - removed/: the removed texts, readable only by their owner
    - ledger/: the first failing rule, the value and the threshold of each removed document
    - contamination/: the benchmark questions found in the text
    - report.md and funnel.png: what each rule removed
    - measures/, if configured: the spread of signals by language
    """
    from tasks.filter.report import publish
    from tasks.filter.run import filter_shards
    from tasks.filter.signal_statistics.table import write_measures

    repairs = None
    if config.repair:
        repaired = out.obtain(repair, config.repair, documents)
        documents, repairs = repaired.part("documents"), repaired.part("ledger")
    measured = measure(config, documents, benchmarks, out)
    total = filter_shards(config, documents, repairs, measured, out)
    finish(config, measured, out)
    if config.measures:
        write_measures(config.measures, rules(config), documents, measured, out)
    publish(config, total, out)
