"""The filter stage: signals from the store, verdicts from the thresholds. What is heavy is imported when it runs."""

from __future__ import annotations

from storage.artifact import Artifact
from tasks.filter.config import FilterConfig
from tasks.filter.families import measure
from tasks.filter.pii.salt import read_salt, salt_digest
from tasks.filter.repair.stage import repair
from tasks.stage import stage
from tasks.stage.output import Output


def fingerprints(config: FilterConfig) -> dict[str, str]:
    """The salt of surrogates as a digest. Raises ConfigError when it can't be read."""
    salt = config.pii.salt
    return {} if salt is None else {"pii.salt": salt_digest(read_salt(salt))}


@stage(version=2, name="filter", runtime=("data", "compute"), sources=fingerprints)
def filter_documents(config: FilterConfig, documents: Artifact, benchmarks: Artifact, out: Output) -> None:
    """Keep the documents that pass every rule, with personal data replaced in what is kept.

    Each family of signals is an artifact of its own, measured once; here they are only judged. Writes documents/,
    removed/ (readable, apart), ledger/ with the first failing rule, the value and the threshold of each removed
    document, contamination/ with the benchmark questions that training text holds, report.md and funnel.png: what each
    rule removed, with examples. With `repair`, the texts are mended before anything is measured.
    """
    from tasks.filter.report import publish
    from tasks.filter.run import filter_shards, keep_questions

    repairs = None
    if config.repair:
        repaired = out.obtain(repair, config.repair, documents)
        documents, repairs = repaired.part("documents"), repaired.part("ledger")
    measured = measure(config, documents, benchmarks, out)
    total = filter_shards(config, documents, repairs, measured, out)
    keep_questions(config, measured["contamination"], out)
    publish(config, total, out)
