"""The stages for personal data in pairs: `pii_pairs` finds it, `pairs` decides.

Pairs are not documents: neither dedup nor the rules over texts see them, and new pairs must not make the filter copy
the corpus again. So they have their own stage, with the section `filter.pii` as its config.
"""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path
from typing import Any

from storage.artifact import Artifact
from storage.errors import DamagedArtifact
from tasks.filter.pii.config import PiiConfig
from tasks.filter.pii.family import PiiRules, fingerprints
from tasks.filter.side_files import FILE
from tasks.shards import ShardResult, collect, map_shards
from tasks.stage import stage
from tasks.stage.output import Output
from tasks.stage.runtime import Runtime


@stage(version=6, name="pii_pairs", part_of="pairs", runtime=("data",))
def pair_signals(
    config: PiiConfig, instructions: Artifact, preferences: Artifact, labelled: Artifact | None, out: Output
) -> None:
    """Find personal data in instruction and preference pairs and labelled rows, as `pii` does in documents.

    Writes for each role and file `pii`, a list of (entity, start, end, score), and `pii_findings`, a row per message.
    """
    from tasks.filter.pairs.measure import measure_pairs

    for role, pairs in _by_role(instructions, preferences, labelled).items():
        measured = map_shards(functools.partial(measure_pairs, config), pairs.files("*.jsonl"), out, role, "files")
        collect(measured, FILE, out.path / role)


def check(config: PiiRules, runtime: Runtime) -> None:
    """Raise ConfigError for a salt that can't be read."""
    fingerprints(config)


@stage(version=2, name="pairs", section="filter", runtime=("data",), sources=fingerprints, check=check)
def filter_pairs(
    config: PiiRules, instructions: Artifact, preferences: Artifact, labelled: Artifact | None, out: Output
) -> None:
    """Search instruction and preference pairs, and labelled rows if any, for personal data, with the rules and actions
    for documents.

    Writes instructions/, preferences/ and labelled/ under the input's file names, and ledger/ with a verdict for each
    changed or removed pair. The removed data remains only in the artifact of `download`.
    """
    from tasks.filter.pairs.decide import LEDGER, PAIRS, Job, decide_pairs

    signals = out.obtain(pair_signals, config.measure, instructions, preferences, labelled)
    decided: dict[str, list[ShardResult]] = {}
    for role, pairs in _by_role(instructions, preferences, labelled).items():
        files, side_files = pairs.files("*.jsonl"), signals.part(role).files("*.parquet")
        if len(files) != len(side_files):
            raise DamagedArtifact(
                f"The signals cover {len(side_files)} files, but there are {len(files)} files of {role}.",
                "Measure again: --refresh pii_pairs.",
            )
        jobs = [Job(*both) for both in zip(files, side_files, strict=True)]
        decided[role] = map_shards(functools.partial(decide_pairs, config), jobs, out, role, "files")
        for number, (file, result) in enumerate(zip(files, decided[role], strict=True)):
            _link(result.folder / PAIRS, out.path / role / file.name)
            _link(result.folder / LEDGER, out.path / "ledger" / f"{role}-{number:05d}.parquet")
    _report(config, decided, out)


def _by_role(instructions: Artifact, preferences: Artifact, labelled: Artifact | None) -> dict[str, Artifact]:
    inputs = {"instructions": instructions, "preferences": preferences, "labelled": labelled}
    return {role: pairs for role, pairs in inputs.items() if pairs is not None}


def _link(target: Path, path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.hardlink_to(target)


def _report(config: PiiRules, decided: dict[str, list[ShardResult]], out: Output) -> None:
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
                what=role, section="filter.pii", documents_in=seen.total(), kept=kept.total(), removed=total["removed"]
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
    kinds = sorted(set().union(*findings.values()))
    out.table(
        "Personal data",
        [
            {"kind": kind, "action": config.action_of(kind), **{role: findings[role][kind] for role in decided}}
            for kind in kinds
        ],
    )
