"""The contamination stage: documents compared with every benchmark question."""

from __future__ import annotations

from storage.artifact import Artifact
from tasks.filter.contamination.config import ContaminationConfig
from tasks.stage import stage
from tasks.stage.output import Output


@stage(version=5, name="contamination", part_of="filter", runtime=("data",))
def contamination_signals(config: ContaminationConfig, documents: Artifact, benchmarks: Artifact, out: Output) -> None:
    """Find the n-grams that documents share with benchmark questions (Brown et al. 2020, appendix C).

    An n-gram in more than `max_documents` documents is a common phrase, and isn't counted unless the document has the
    question's whole query. The stage writes:

    - side files with `contamination_ngrams`, the number of distinct n-grams that the document shares with any
      benchmark, and `contamination_benchmarks`, the benchmarks' names joined by commas
    - questions.jsonl, how much of each question is in the documents: `ngrams` and `found` of the `part` of which the
      largest share is found (query, answer, both, or query and options), `documents` that have any of it, and `common`,
      the n-grams of that part that don't count
    - phrases.jsonl, the most frequent common phrases
    """
    from tasks.filter.contamination.measure import find_contamination

    find_contamination(config, documents, benchmarks, out)
