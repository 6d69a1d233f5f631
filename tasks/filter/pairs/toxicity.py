"""The stage `toxicity_pairs`: abusive language in what a model learns to write."""

from __future__ import annotations

from storage.artifact import Artifact
from tasks.filter.toxicity.config import ToxicityConfig
from tasks.filter.toxicity.stage import fingerprints, score_texts, toxicity_model
from tasks.stage import stage
from tasks.stage.output import Output


def sources(config: ToxicityConfig) -> dict[str, str]:
    """The packages' versions, or the digest of the classifier. Raises SourceError."""
    return fingerprints(config.model)


@stage(version=1, name="toxicity_pairs", part_of="pairs", runtime=("data", "compute"), sources=sources)
def pair_toxicity(
    config: ToxicityConfig, instructions: Artifact, preferences: Artifact, labelled: Artifact | None, out: Output
) -> None:
    """Score the answers in pairs as `toxicity` scores documents, except rejected answers. Writes the same columns."""
    from tasks.filter.pairs.measure import answers_of, as_documents, by_role

    documents = as_documents(by_role(instructions, preferences, labelled), answers_of, out.scratch / "texts")
    made = Output.at(out.scratch / "model", stage=toxicity_model.name, runtime=out.runtime)
    toxicity_model.function(config.model, documents, made)
    score_texts(config, documents, Artifact.at(made.path), out)
