"""Documents are embedded as by plain code, clustered, and compared with preferred ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from storage.artifact import Artifact
from storage.errors import ConfigError, DamagedArtifact, SourceError
from storage.shards.documents import Document, shard_name, write_documents
from tasks.base.config import BaseConfig
from tasks.filter import FilterConfig
from tasks.filter.families import rules
from tasks.filter.semantic.clusters import find_centres, nearest
from tasks.filter.semantic.config import EmbeddingsConfig, SemanticConfig
from tasks.filter.semantic.stage import embeddings, encoder, semantic_signals
from tasks.filter.side_files import read_signals
from tasks.stage.output import Output
from tests.runtimes import runtime_of
from tests.tasks.filter.code.test_code import run
from tests.tasks.filter.signals.test_signals import corpus
from tests.tasks.filter.tiny_classifier import LENGTH, texts
from tests.tasks.filter.tiny_encoder import save_encoder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder(tmp_path_factory.mktemp("encoder"))


def embedded(place: Path, model: Path, documents: Artifact, *, workers: int = 1, **config: Any) -> Output:
    chosen = EmbeddingsConfig.model_validate({"encoder": {"folder": str(model)}, **config})
    out = Output.at(place, stage="embeddings", runtime=runtime_of(workers=workers, device="cpu"))
    embeddings.function(chosen, documents, out)
    return out


def compared(
    place: Path, model: Path, documents: Artifact, vectors: Output, *, workers: int = 1, **config: Any
) -> list[dict[str, Any]]:
    chosen = SemanticConfig.model_validate({"model": {"encoder": {"folder": str(model)}}, **config})
    out = Output.at(place, stage="semantic", runtime=runtime_of(workers=workers, device="cpu"))
    semantic_signals.function(chosen, documents, Artifact.at(vectors.path), out)
    return [
        row for path in sorted(out.path.glob("*.parquet")) for batch in read_signals(path) for row in batch.to_pylist()
    ]


def vectors_of(out: Output) -> np.ndarray:
    return np.concatenate([np.load(path) for path in sorted(out.path.glob("*.npy"))]).astype(np.float64)


def plain_vectors(folder: Path, given: list[str]) -> np.ndarray:
    """One text at a time, as model cards have it: the mean of the last hidden states."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    found = []
    for text in given:
        with torch.no_grad():
            hidden = model(**tokenizer(text, truncation=True, max_length=LENGTH, return_tensors="pt")).last_hidden_state
        found.append(torch.nn.functional.normalize(hidden.mean(1))[0].numpy())
    return np.array(found, np.float64)


def plain_signals(vectors: np.ndarray, ids: list[str], *, farthest: bool = True) -> list[tuple[float, str]]:
    """SemDeDup in one cluster, pair by pair."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    centre = unit.mean(axis=0)
    order = sorted(
        range(len(ids)),
        key=lambda n: (round(float(unit[n] @ centre / np.linalg.norm(centre)), 5) * (1 if farthest else -1), ids[n]),
    )
    found = [(0.0, "")] * len(ids)
    for place, mine in enumerate(order):
        for other in order[:place]:
            cosine = float(unit[mine] @ unit[other])
            if cosine > found[mine][0] + 1e-5:
                found[mine] = cosine, ids[other]
    return found


def test_embeddings_are_those_of_plain_code(folder: Path, tmp_path: Path) -> None:
    given = [*texts(30), " ".join(texts(9)), "?! …"]
    out = embedded(tmp_path / "out", folder, corpus(tmp_path / "in", given, 1))
    found = vectors_of(out)
    assert found[:-1] == pytest.approx(plain_vectors(folder, given[:-1]), abs=2e-3)
    assert not found[-1].any()
    assert (out.counts["documents"], out.counts["cut_off"]) == (32, 1)
    short = embedded(tmp_path / "short", folder, corpus(tmp_path / "in2", given, 1), max_tokens=8)
    assert short.counts["tokens"] == 31 * 8


@pytest.mark.parametrize("keep", ["farthest", "closest"])
def test_the_signal_is_the_highest_cosine_to_a_document_before(folder: Path, tmp_path: Path, keep: str) -> None:
    given = [*texts(40), "?! …"]
    documents = corpus(tmp_path / "in", given, 1)
    vectors = embedded(tmp_path / "vectors", folder, documents)
    rows = compared(tmp_path / "out", folder, documents, vectors, clusters=1, keep=keep)
    ids = [Document.new(text, "test").id for text in given[:-1]]
    wanted = plain_signals(vectors_of(vectors)[:-1], ids, farthest=keep == "farthest")
    assert [row["semantic_duplicate"] for row in rows[:-1]] == pytest.approx([value for value, _ in wanted], abs=2e-5)
    agreeing = sum(row["semantic_of"] == other[:16] for row, (_, other) in zip(rows, wanted, strict=False))
    assert agreeing >= 38, "of equally near ones another may be named"
    assert {row["semantic_cluster"] for row in rows} == {0, None}
    assert set(rows[-1].values()) == {None}


def test_documents_of_other_clusters_are_not_compared(folder: Path, tmp_path: Path) -> None:
    documents = corpus(tmp_path / "in", texts(60), 1)
    vectors = embedded(tmp_path / "vectors", folder, documents)
    rows = compared(tmp_path / "out", folder, documents, vectors, clusters=4, sample=30)
    ids = [Document.new(text, "test").id for text in texts(60)]
    cluster = {id_[:16]: row["semantic_cluster"] for id_, row in zip(ids, rows, strict=True)}
    assert len(set(cluster.values())) > 1
    assert all(cluster[row["semantic_of"]] == row["semantic_cluster"] for row in rows if row["semantic_of"])
    firsts = [row["semantic_cluster"] for row in rows if not row["semantic_of"]]
    assert sorted(firsts) == sorted(set(cluster.values())), "each cluster has one that comes first"


def test_workers_and_the_order_of_shards_change_nothing(folder: Path, tmp_path: Path) -> None:
    halves = [[Document.new(text, "test") for text in some] for some in (texts(50), texts(10, seed=5))]
    found = {}
    for name, workers, order in (("one", 1, 1), ("two", 2, 1), ("order", 2, -1)):
        for number, documents in enumerate(halves[::order]):
            write_documents(tmp_path / name / "in" / shard_name(number), documents)
        given = Artifact.at(tmp_path / name / "in")
        vectors = embedded(tmp_path / name / "vectors", folder, given, workers=workers)
        rows = compared(tmp_path / name / "out", folder, given, vectors, workers=workers, clusters=3)
        ids = [document.id for documents in halves[::order] for document in documents]
        found[name] = dict(zip(ids, rows, strict=True))
    assert found["one"] == found["two"] == found["order"]


@given(arrays(np.float32, (12, 3), elements=st.floats(-1, 1, width=16)), st.integers(1, 14), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_centres_are_of_length_one_and_each_vector_is_with_its_nearest(
    given: np.ndarray, count: int, seed: int
) -> None:
    vectors = given[np.linalg.norm(given, axis=1) > 0.1]
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    centres = find_centres(vectors, count, 20, seed)
    assert len(centres) == min(count, len(vectors))
    assert np.linalg.norm(centres, axis=1) == pytest.approx(np.ones(len(centres)), abs=1e-5)
    if len(vectors):
        places, values = nearest(vectors, centres)
        assert values == pytest.approx((vectors @ centres.T).max(axis=1), abs=1e-5)
        assert values == pytest.approx((vectors * centres[places]).sum(axis=1), abs=1e-5)


def test_the_filter_removes_what_is_like_another_and_says_which(folder: Path, tmp_path: Path) -> None:
    first, second = (Document.new(f"{word} town people water history {word} river", "a") for word in ("hill", "castle"))
    copies = [Document.new(f"{first.text} {mark}", "a") for mark in ("1", "2")]
    off = {"gopher_quality": None, "gopher_repetition": None, "c4": None, "fineweb": None, "language": None}
    semantic = {"measure": {"model": {"encoder": {"folder": str(folder)}}, "clusters": 1}, "max_similarity": 0.99999}
    kept, verdicts, _ = run(tmp_path, [second, *copies], semantic=semantic, **off, pii={"action": "keep"})
    (gone,) = verdicts.values()
    stays = next(document for document in copies if document.id in kept)
    assert set(kept) == {second.id, stays.id}, "1 and 2 are the same unknown word to this model"
    assert (gone.reason, gone.detail, gone.threshold) == ("semantic.max_similarity", stays.id[:16], 0.99999)


def test_a_changed_threshold_is_no_other_measurement() -> None:
    measure = {"model": {"encoder": {"folder": "x"}}}
    for bound in (0.9, None):
        config = FilterConfig.model_validate({"semantic": {"measure": measure, "max_similarity": bound}})
        assert config.semantic is not None
        assert config.semantic.measure == SemanticConfig.model_validate(measure)
        assert [rule.threshold for rule in rules(config) if rule.name.startswith("semantic")] == [bound] * bool(bound)


def test_what_is_no_encoder_is_refused(folder: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    out = Output.at(tmp_path / "out", stage="encoder")
    encoder.function(BaseConfig(folder=str(folder)), out)
    (out.path / "pytorch_model.bin").write_bytes(b"")
    weights = load_file(folder / "model.safetensors")
    half = out.path / "model.safetensors"
    save_file({name: value for name, value in weights.items() if "output.dense" not in name}, half, {"format": "pt"})
    with pytest.raises(SourceError, match=r"is not a trained encoder: missing are encoder\.layer"):
        encoder.function(BaseConfig(folder=str(out.path)), Output.at(tmp_path / "half", stage="encoder"))
    half.unlink()
    with pytest.raises(SourceError, match=r"only in pytorch_model\.bin"):
        encoder.function(BaseConfig(folder=str(out.path)), Output.at(tmp_path / "pickle", stage="encoder"))
    with pytest.raises(SourceError, match="does not exist"):
        embeddings.payload(EmbeddingsConfig(encoder=BaseConfig(folder=str(tmp_path / "none"))), [Artifact.at(tmp_path)])
    with pytest.raises(ConfigError, match=f"can read {LENGTH}"):
        embedded(tmp_path / "long", folder, corpus(tmp_path / "in", texts(3), 1), max_tokens=LENGTH + 1)
    assert torch.get_num_threads() > 0


def test_embeddings_of_other_documents_are_refused(folder: Path, tmp_path: Path) -> None:
    vectors = embedded(tmp_path / "vectors", folder, corpus(tmp_path / "in", texts(8), 1))
    with pytest.raises(DamagedArtifact, match="don't belong to these documents"):
        compared(tmp_path / "out", folder, corpus(tmp_path / "other", texts(8, seed=3), 1), vectors)
