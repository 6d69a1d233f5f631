"""Pairs as documents, for signals that are measured on documents: a row per pair, in the order of its file."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from storage.artifact import Artifact
from storage.errors import ConfigError
from storage.shards.documents import Document, write_documents
from tasks.filter.contamination.config import ContaminationConfig
from tasks.filter.pairs.measure import Pair, files_by_name, groups, texts_of
from tasks.filter.toxicity.config import ToxicityConfig
from tasks.filter.toxicity.stage import score_texts, toxicity_model
from tasks.stage.output import Output


def answers_of(pair: Pair) -> list[str]:
    """The texts that a model learns to write: what the assistant says, but no rejected answer."""
    turns = [*pair.get("messages", ()), *pair.get("chosen", ())]
    if pair.get("label"):
        turns += pair["completion"]
    return [message["content"] for message in turns if message["role"] == "assistant"]


def find_contamination_in_pairs(
    config: ContaminationConfig, pairs: Mapping[str, Artifact], benchmarks: Artifact, out: Output
) -> None:
    """Write the signals of `contamination` for all texts of the pairs. Raises ConfigError without questions."""
    from tasks.filter.contamination.measure import find_contamination

    if not benchmarks.names("*.jsonl"):
        raise ConfigError(
            "filter.pairs names contamination, but there are no benchmark questions.",
            "Add benchmarks to download.benchmarks, or leave contamination out.",
        )
    find_contamination(config, _documents(pairs, out, texts_of), benchmarks, out)


def score_answers(config: ToxicityConfig, pairs: Mapping[str, Artifact], out: Output) -> None:
    """Write the signals of `toxicity` for the answers of the pairs."""
    documents = _documents(pairs, out, answers_of)
    made = Output.at(out.scratch / "model", stage=toxicity_model.name, runtime=out.runtime)
    toxicity_model.function(config.model, documents, made)
    score_texts(config, documents, Artifact.at(made.path), out)


def _documents(pairs: Mapping[str, Artifact], out: Output, texts: Callable[[Pair], list[str]]) -> Artifact:
    folder = out.scratch / "texts"
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in files_by_name(pairs).items():
        rows = (pair for group in groups(path) for pair in group)
        write_documents(
            folder / name, (Document(pair["id"], "\n\n".join(texts(pair)), pair["source"]) for pair in rows)
        )
    return Artifact.at(folder)
