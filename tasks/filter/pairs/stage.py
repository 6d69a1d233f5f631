"""The stage `pairs`: personal data in pairs, and by choice contamination and toxicity.

Pairs are not documents: neither dedup nor the rules over texts see them, and new pairs must not make the filter copy
the corpus again. So they have stages of their own, with sections of `filter` as their config.
"""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path
from typing import Any

from storage.artifact import Artifact
from tasks.filter.pairs.config import PairRules
from tasks.filter.pairs.contamination import pair_contamination
from tasks.filter.pairs.pii import pair_signals
from tasks.filter.pairs.toxicity import pair_toxicity
from tasks.filter.pii.family import PiiRules
from tasks.filter.pii.family import fingerprints as salt_of
from tasks.filter.toxicity.family import FAMILY as TOXICITY
from tasks.shards import ShardResult, map_shards
from tasks.stage import stage
from tasks.stage.output import Output
from tasks.stage.runtime import Runtime


def check(config: PiiRules | PairRules, runtime: Runtime) -> None:
    """Raise a GristmillError for a salt that can't be read, or a machine that lacks the classifier's package."""
    rules = PairRules.of(config)
    salt_of(rules.pii)
    if rules.toxicity is not None:
        assert TOXICITY.check_here is not None
        TOXICITY.check_here(rules.toxicity, runtime)


def sources(config: PiiRules | PairRules) -> dict[str, str]:
    """Digests of what measuring and deciding read outside the store. Raises ConfigError, SourceError."""
    rules = PairRules.of(config)
    return salt_of(rules.pii) | TOXICITY.sources(rules)


@stage(version=2, name="pairs", section="filter", runtime=("data", "compute"), sources=sources, check=check)
def filter_pairs(
    config: PiiRules | PairRules,
    instructions: Artifact,
    preferences: Artifact,
    labelled: Artifact | None,
    benchmarks: Artifact | None,
    out: Output,
) -> None:
    """Search instruction and preference pairs, and labelled rows if any, for personal data, with the rules and actions
    for documents, and by choice for contamination by the benchmarks and for toxic answers.

    Writes instructions/, preferences/ and labelled/ under the input's file names, and ledger/ with a verdict for each
    changed or removed pair. What was removed remains only in the artifact of `download`.
    """
    from tasks.filter.pairs.decide import LEDGER, PAIRS, decide_pairs, jobs_of
    from tasks.filter.pairs.measure import by_role

    rules = PairRules.of(config)
    pairs = by_role(instructions, preferences, labelled)
    jobs = jobs_of(pairs, _signals(rules, [instructions, preferences, labelled], benchmarks, out))
    decided: dict[str, list[ShardResult]] = {}
    for role, artifact in pairs.items():
        work = functools.partial(decide_pairs, rules)
        decided[role] = map_shards(work, jobs[role], out, role, "files")
        for number, (file, result) in enumerate(zip(artifact.files("*.jsonl"), decided[role], strict=True)):
            _link(result.folder / PAIRS, out.path / role / file.name)
            _link(result.folder / LEDGER, out.path / "ledger" / f"{role}-{number:05d}.parquet")
    _report(rules, decided, out)


def _signals(
    rules: PairRules, pairs: list[Artifact | None], benchmarks: Artifact | None, out: Output
) -> dict[str, Artifact]:
    """The signals that the rules ask for, by family."""
    found = {}
    if rules.pii is not None:
        found["pii"] = out.obtain(pair_signals, rules.pii.measure, *pairs)
    if rules.contamination is not None:
        found["contamination"] = out.obtain(pair_contamination, rules.contamination.measure, *pairs, benchmarks)
    if rules.toxicity is not None:
        found["toxicity"] = out.obtain(pair_toxicity, rules.toxicity.measure, *pairs)
    return found


def _link(target: Path, path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.hardlink_to(target)


def _report(config: PairRules, decided: dict[str, list[ShardResult]], out: Output) -> None:
    by_source: list[dict[str, Any]] = []
    findings: dict[str, Counter[str]] = {}
    for role, results in decided.items():
        total: dict[str, Counter[str]] = {}
        for result in results:
            for name, count in result.counts.items():
                total.setdefault(name, Counter()).update(count)
        seen, kept, changed = total["seen"], total["kept"], total["changed"]
        findings[role] = total["found"]
        if seen:  # a profile may lack pairs of a role
            out.account(
                what=role, section="filter", documents_in=seen.total(), kept=kept.total(), removed=total["removed"]
            )
        out.count(**{f"{role}_changed": changed.total()})
        by_source += [
            {
                "pairs": role,
                "source": source,
                "in": count,
                "kept": kept[source],
                "changed": changed[source],
                "removed": count - kept[source],
            }
            for source, count in sorted(seen.items())
        ]
    out.table("Pairs", by_source)
    if config.pii is None:
        return
    kinds = sorted(set().union(*findings.values()))
    out.table(
        "Personal data",
        [
            {"kind": kind, "action": config.pii.action_of(kind), **{role: findings[role][kind] for role in decided}}
            for kind in kinds
        ],
    )
