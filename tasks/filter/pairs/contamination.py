"""The stage `contamination_pairs`: pairs compared with every benchmark question."""

from __future__ import annotations

from storage.artifact import Artifact
from storage.errors import ConfigError
from tasks.filter.contamination.config import ContaminationConfig
from tasks.stage import stage
from tasks.stage.output import Output


@stage(version=1, name="contamination_pairs", part_of="pairs", runtime=("data",))
def pair_contamination(
    config: ContaminationConfig,
    instructions: Artifact,
    preferences: Artifact,
    labelled: Artifact | None,
    benchmarks: Artifact,
    out: Output,
) -> None:
    """Find the n-grams that pairs share with benchmark questions, as `contamination` does in documents. A pair's texts
    count as one. Writes the same files. Raises ConfigError without questions."""
    from tasks.filter.contamination.measure import find_contamination
    from tasks.filter.pairs.measure import as_documents, by_role, texts_of

    if not benchmarks.names("*.jsonl"):
        raise ConfigError(
            "filter.pairs names contamination, but there are no benchmark questions.",
            "Add benchmarks to download.benchmarks, or leave contamination out.",
        )
    documents = as_documents(by_role(instructions, preferences, labelled), texts_of, out.scratch / "texts")
    find_contamination(config, documents, benchmarks, out)
