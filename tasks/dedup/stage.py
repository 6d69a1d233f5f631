"""The dedup stage: sketch every shard, decide over all of them, write every shard.

Sketching and writing run a shard at a time in workers; the decision needs all sketches at once and runs here.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from storage.artifact import Artifact
from storage.documents import Document, Verdict, read_documents, write_documents, write_ledger
from storage.errors import DamagedArtifact, GristmillError
from tasks.dedup.config import DedupConfig
from tasks.output import Output
from tasks.shards import map_shards
from tasks.stage import stage

EXACT, NEAR = "exact_duplicate", "near_duplicate"
JACCARDS_SHOWN = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)


@stage(version=1)
def dedup(config: DedupConfig, documents: Artifact, out: Output) -> None:
    """Remove exact and near-duplicates; of each cluster the longest document is kept.

    Reads `*.parquet` document shards; writes `documents/` with the kept documents of each input shard under its name
    (a shard that loses all of them stays, empty) and `ledger/` with a verdict for each removed one. Exact: xxh3_128 of
    the normalised text. Near: MinHash LSH (Broder 1997; as in Lee et al. 2022, "Deduplicating Training Data Makes
    Language Models Better"), each candidate pair verified by the exact Jaccard of its shingle sets.
    """
    # not at the top: datasketch brings scipy, and importing a stage must stay cheap
    from tasks.dedup.bands import choose_bands, expected_recall
    from tasks.dedup.clusters import decide
    from tasks.dedup.corpus import Corpus
    from tasks.dedup.sketch import sketch_shard

    bands, rows = choose_bands(config)
    out.table(
        f"Expected recall of {bands} bands × {rows} rows",
        [{"Jaccard": s, "becomes a candidate": f"{expected_recall(s, bands, rows):.3f}"} for s in JACCARDS_SHOWN],
    )
    shards = documents.files("*.parquet")
    started = time.monotonic()
    sketches = map_shards(partial(sketch_shard, config=config), shards, out, "sketches")
    sketched = time.monotonic()
    corpus = Corpus.load([result.folder for result in sketches])
    decision = decide(corpus, config, bands, rows)
    decided = time.monotonic()

    kept = decision.keeper == np.arange(len(corpus))
    removed_rows = np.flatnonzero(~kept)
    removed = Counter(EXACT if decision.exact[row] else NEAR for row in removed_rows)
    _account_by_source(corpus.sources, kept, decision.exact, config, out)

    plans = _write_plans(corpus, decision, out.scratch / "plans")
    written = map_shards(partial(write_shard, config=config), list(zip(shards, plans, strict=True)), out, "written")
    for shard, result in zip(shards, written, strict=True):
        for part in ("documents", "ledger"):
            (out.path / part).mkdir(exist_ok=True)
            # copied, not moved: scratch must stay whole for a resume until the artifact is published
            shutil.copyfile(result.folder / part / shard.name, out.path / part / shard.name)

    chained = int(np.count_nonzero(decision.jaccard[removed_rows] < config.similarity))
    out.count(
        bands=bands, rows=rows, candidate_pairs=decision.candidates, joining_pairs=decision.verified, chained=chained
    )
    characters = sum(result.counts["characters"] for result in sketches)
    out.fact(
        sketch_seconds=round(sketched - started, 2),
        decide_seconds=round(decided - sketched, 2),
        sketch_megacharacters_per_second=round(characters / 1e6 / max(sketched - started, 1e-6), 2),
    )
    out.account(
        documents_in=len(corpus),
        kept=sum(result.counts["kept"] for result in written),
        removed={EXACT: removed[EXACT], NEAR: removed[NEAR]},
    )


def write_shard(task: tuple[Path, Path], folder: Path, *, config: DedupConfig) -> dict[str, Any]:
    """Write the kept documents and the ledger of one shard by its plan; for `map_shards`."""
    shard, plan_file = task
    plan = np.load(plan_file, allow_pickle=False)
    kept: list[Document] = []
    verdicts: list[Verdict] = []
    for document, row in zip(read_documents(shard), plan, strict=True):
        if document.id.encode() != row["id"]:
            raise DamagedArtifact(f"{shard} changed while it was deduplicated.", "Run the stage again.")
        if row["kept"]:
            kept.append(document)
            continue
        reason, threshold = (EXACT, 1.0) if row["exact"] else (NEAR, config.similarity)
        verdicts.append(
            Verdict(
                document.id, document.source, "removed", reason,
                round(float(row["jaccard"]), 6), threshold, row["keeper"].decode(),
            )
        )  # fmt: skip
    write_documents(folder / "documents" / shard.name, kept)
    write_ledger(folder / "ledger" / shard.name, verdicts)
    return {"kept": len(kept)}


def _write_plans(corpus: Any, decision: Any, folder: Path) -> list[Path]:
    """One file a shard, a row a document: what a worker needs to know to write it."""
    ids = corpus.ids
    plan = np.zeros(
        len(corpus), [("id", ids.dtype), ("kept", "?"), ("exact", "?"), ("jaccard", "f8"), ("keeper", ids.dtype)]
    )
    plan["id"], plan["keeper"] = ids, ids[decision.keeper]
    plan["kept"] = decision.keeper == np.arange(len(corpus))
    plan["exact"], plan["jaccard"] = decision.exact, decision.jaccard
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{shard:05d}.npy" for shard in range(len(corpus.starts) - 1)]
    for shard, path in enumerate(paths):
        np.save(path, plan[corpus.starts[shard] : corpus.starts[shard + 1]], allow_pickle=False)
    return paths


def _account_by_source(sources: Any, kept: Any, exact: Any, config: DedupConfig, out: Output) -> None:
    """The table of what each source lost. Raises GristmillError, with the table, for one that lost too much."""
    lines = []
    too_much = []
    for name in np.unique(sources).tolist():
        mine = sources == name
        total, lost = int(mine.sum()), int((mine & ~kept).sum())
        lost_exactly = int((mine & ~kept & exact).sum())
        lines.append(
            {
                "source": name, "documents": total, EXACT: lost_exactly, NEAR: lost - lost_exactly,
                "removed": f"{lost / total:.1%}",
            }
        )  # fmt: skip
        if lost / total > config.max_removed_share_per_source:
            too_much.append(name)
    out.table("Removed by source", lines)
    if too_much:
        table = "\n".join("  ".join(f"{key} {value}" for key, value in line.items()) for line in lines)
        raise GristmillError(
            f"Deduplication removed more than {config.max_removed_share_per_source:.0%} of {', '.join(too_much)}:\n{table}\n",
            "If that is right, raise dedup.max_removed_share_per_source; else look at the source, or raise dedup.similarity.",
        )
