"""The stage: one model, one artifact, made again only if the model, text, file or config changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from models.pretrained import load_pretrained
from models.tokenizer import DIGEST_FIELD, load_tokenizer, tokenizer_digest
from storage.artifact import Artifact
from storage.errors import ConfigError, TokenizerMismatch, TrainingError
from storage.shards.parquet import read_columns
from storage.shards.tokens import open_tokens, write_tokens
from storage.store import Store
from tasks.evaluate.language import LanguageConfig, measure
from tasks.evaluate.language.report import notes, rounded, tables
from tasks.evaluate.language.retokenize import translate
from tasks.evaluate.language.rolling import measure_texts, summary
from tasks.evaluate.language.scores import TransformersScorer
from tasks.evaluate.language.stage import LanguageSpec, language_modelling
from tasks.stage.output import Output
from tasks.stage.session import Session, open_session
from tasks.training.held_out import held_out_shards
from tests.tasks.tiny_model import PLACES, RUNTIME, make_model, make_validation, texts, write_rows

TEXT = "The fox lives in the wood.\n" * 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("language")
    make_model(folder / "model")
    make_validation(folder / "validation", folder / "model")
    (folder / "mine.txt").write_text(TEXT)
    questions = [
        {"id": str(number), "query": "It lives in the", "choices": [f" {place}." for place in PLACES], "gold": number}
        for number in range(6)
    ]
    for name in ("places", "homes"):
        write_rows(folder / "benchmarks" / f"{name}.jsonl", questions)
    return folder


@pytest.fixture(scope="module")
def made(folder: Path) -> Artifact:
    return make(folder)[0]


def make(folder: Path) -> tuple[Artifact, bool]:
    """The artifact of the model in the store of the folder, and whether it was there."""
    with open_session(Session(Store(str(folder / "store")), RUNTIME)):
        inputs = (Artifact.at(folder / "model"), Artifact.at(folder / "validation"), None)
        return language_modelling.materialize(config_of(folder), inputs)


def config_of(folder: Path) -> LanguageConfig:
    return LanguageConfig(files={"mine": str(folder / "mine.txt")})


def measured(model: Path, text: Path | None, scratch: Path, config: LanguageConfig) -> dict[str, Any]:
    """The child's result, run in this process."""
    out = Output.at(scratch, runtime=RUNTIME)
    digest = tokenizer_digest(model)
    spec = LanguageSpec(
        config=config,
        runtime=RUNTIME,
        model=model,
        tokenizer_digest=digest,
        shards=held_out_shards(Artifact.at(text), model, digest, out.scratch) if text else [],
        scratch=out.scratch,
        out=out.path,
    )
    (scratch / "spec.json").write_text(spec.model_dump_json())
    measure.run(scratch / "spec.json")
    found: dict[str, Any] = json.loads(spec.result.read_text())
    return found


def test_all_is_measured_and_shown(folder: Path, made: Artifact) -> None:
    assert made.manifest is not None
    assert set(made.manifest.files) == {
        "language.json",
        "language.md",
        "calibration.png",
        "positions.png",
        "documents.parquet",
    }
    found = json.loads((made.path / "language.json").read_text())
    documents = read_columns(made.path / "documents.parquet").to_pylist()
    held_out = [row for row in documents if row["held_out"]]
    assert len(held_out) == found["held_out"]["documents"] == 12
    assert sum(row["tokens"] for row in documents) == found["held_out"]["tokens"] + found["files"]["mine"]["tokens"]
    model, tokenizer = load_pretrained(folder / "model").eval(), load_tokenizer(folder / "model")
    alone = summary(measure_texts(TransformersScorer(model), tokenizer, [TEXT]))
    assert found["files"]["mine"]["bits_per_byte"] == round(alone["bits_per_byte"], 6)
    assert documents[-1]["nats"] / documents[-1]["tokens"] == pytest.approx(alone["nats_per_token"], rel=1e-6)
    counts, facts = made.manifest.counts, made.manifest.facts
    page = (made.path / "language.md").read_text()
    for title in counts["tables"]:
        assert f"## {title}" in page
    assert "| mine | 1 | 810 |" in page
    assert counts["language"]["files"]["mine"]["bits_per_byte"] == found["files"]["mine"]["bits_per_byte"]
    assert counts["summary"].endswith(f"mine {alone['bits_per_byte']:.3f}")
    assert (facts["device"], facts["dtype"]) == ("cpu", "float32")


def test_the_artifact_is_made_once_and_another_process_measures_the_same(
    folder: Path, made: Artifact, tmp_path: Path
) -> None:
    again, cached = make(folder)
    assert cached
    assert again.digest == made.digest
    found = measured(folder / "model", folder / "validation", tmp_path, config_of(folder))
    del found["facts"]
    assert rounded(found) == json.loads((made.path / "language.json").read_text())
    assert (tmp_path / "out" / "documents.parquet").read_bytes() == (made.path / "documents.parquet").read_bytes()


def test_the_bytes_of_a_file_are_in_the_key(tmp_path: Path, folder: Path) -> None:
    path, model = tmp_path / "mine.txt", Artifact.at(folder / "model")
    keys = set()
    for text in ("in the yard", "in the barn", "in the yard"):
        path.write_text(text)
        keys.add(language_modelling.payload(LanguageConfig(files={"mine": str(path)}), (model, None, None)).key())
    assert len(keys) == 2


def test_a_sample_says_that_it_is_one(folder: Path, tmp_path: Path) -> None:
    for tokens, is_sample in ((128, True), (None, False)):
        config = LanguageConfig(validation_tokens=tokens)
        found = measured(folder / "model", folder / "validation", tmp_path / str(tokens), config)
        assert found["held_out"]["is_sample"] is is_sample
        assert any("sample" in note for note in notes(rounded(found))) is is_sample


def test_questions_are_measured_by_benchmark(folder: Path, tmp_path: Path) -> None:
    rows = measured(folder / "model", folder / "benchmarks", tmp_path, LanguageConfig())["held_out"]["by_source"]
    assert [(row["name"], row["documents"]) for row in rows] == [("homes", 6), ("places", 6)]
    sizes = [len(f"It lives in the {place}.") for place in PLACES[:6]]
    tokenizer = load_tokenizer(folder / "model")
    first = tokenizer.decode(tokenizer.encode("It lives")[0])  # before which nothing stands, so that it has no loss
    assert [row["bytes"] for row in rows] == [sum(sizes) - len(first), sum(sizes)]


def test_files_alone_are_enough_and_nothing_is_not(folder: Path, tmp_path: Path) -> None:
    found = measured(folder / "model", None, tmp_path, config_of(folder))
    assert "held_out" not in found
    assert list(tables(rounded(found))) == ["Perplexity of files"]
    with pytest.raises(ConfigError, match="No text to measure"):
        language_modelling.function(LanguageConfig(), Artifact.at(folder / "model"), None, None, Output.at(tmp_path))


def test_what_does_not_belong_together_or_is_broken_is_named(folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    broken = tmp_path / "broken"
    broken.mkdir()
    for path in (folder / "model").iterdir():
        (broken / path.name).write_bytes(path.read_bytes())
    weights = load_file(broken / "model.safetensors")
    first = sorted(weights)[0]
    weights[first] = torch.full_like(weights[first], float("nan"))
    save_file(weights, broken / "model.safetensors", {"format": "pt"})
    with pytest.raises(TrainingError, match=r"loss on document \d+ of all is nan"):
        measured(broken, folder / "validation", tmp_path / "nan", LanguageConfig())
    template = broken / "chat_template.jinja"
    template.write_text(template.read_text() + " ")
    with pytest.raises(TokenizerMismatch):
        language_modelling.function(
            LanguageConfig(),
            Artifact.at(broken),
            Artifact.at(folder / "validation"),
            None,
            Output.at(tmp_path / "other"),
        )


def test_a_model_with_another_tokenizer_is_measured_on_the_same_text(folder: Path, tmp_path: Path) -> None:
    """With fewer merges: more tokens, the same documents and bytes."""
    other = make_model(tmp_path / "other" / "model", vocab_size=600)
    settings = json.loads((other / "tokenizer.json").read_text())
    settings["model"]["merges"] = settings["model"]["merges"][:100]  # ids of later merges are never used
    (other / "tokenizer.json").write_text(json.dumps(settings))
    config = json.loads((other / "config.json").read_text())
    digest = tokenizer_digest(other)
    (other / "config.json").write_text(json.dumps({**config, DIGEST_FIELD: digest}))
    shards, known = sorted((folder / "validation").glob("*.tokens")), tokenizer_digest(folder / "model")
    written = translate(shards, folder / "model", other, digest, tmp_path / "translated")
    tokenizer = load_tokenizer(other)
    ids = [[*tokenizer.encode(text), 0] for text in list(texts())[:12]]
    made = [open_tokens(path, tokenizer_digest=digest, verify=True) for path in written]
    assert [id for shard in made for id in shard.ids.tolist()] == [id for document in ids for id in document]
    assert sum(len(shard.ids) for shard in made) > sum(len(open_tokens(path).ids) for path in shards)
    with pytest.raises(TokenizerMismatch):
        language_modelling.function(
            LanguageConfig(), Artifact.at(other), Artifact.at(folder / "validation"), None, Output.at(tmp_path / "no")
        )
    lossy = tmp_path / "lossy.tokens"
    kept = open_tokens(shards[0])
    ids_of_text = kept.ids[: int(kept.starts[1])]
    write_tokens(lossy, [ids_of_text], vocab_size=600, eos_id=0, tokenizer_digest=known, text_bytes=1000)
    with pytest.raises(TokenizerMismatch, match=r"made from 1,000 bytes of text, but its tokens spell \d+"):
        translate([lossy], folder / "model", other, digest, tmp_path / "wrong")


def test_the_dtype_is_that_of_the_config(folder: Path) -> None:
    cpu = torch.device("cpu")
    assert measure.load(folder / "model", "auto", cpu).dtype == torch.float32
    assert measure.load(folder / "model", "bfloat16", cpu).dtype == torch.bfloat16
