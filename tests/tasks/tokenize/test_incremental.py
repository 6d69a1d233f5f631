"""A document shard is encoded once: later artifacts reuse its token files, and are the same as without reuse."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from storage.artifact import Artifact
from storage.errors import ConfigError, DamagedArtifact
from storage.manifest import Manifest
from storage.shards.documents import Document, shard_name, write_documents
from storage.store import Store
from tasks.shards.incremental import link
from tasks.stage.session import Session, open_session
from tasks.tokenize.stage import TokenizeConfig, tokenize
from tasks.tokenizer import TokenizerConfig, train_tokenizer
from tasks.tokenizer.encoder.tables import read_settings
from tests.notes import Notes
from tests.runtimes import runtime_of
from tests.tasks.tiny_model import make_tokenizer, texts
from tests.tasks.tokenizer.encoder.faulty_kernels import exchange_letters

SENTENCES = list(texts())
CONFIG = TokenizeConfig(validation_share=0.2)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def foreign(tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer that our kernels do not support."""
    folder = tmp_path_factory.mktemp("foreign")
    for path in tokenizer.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    settings = read_settings(tokenizer)
    settings["pre_tokenizer"]["add_prefix_space"] = True
    (folder / "tokenizer.json").write_text(json.dumps(settings))
    return folder


def shard(number: int) -> list[Document]:
    """Documents of one shard, of two sources."""
    return [Document.new(text, f"source{n % 2}") for n, text in enumerate(SENTENCES[number::6])]


A = [shard(0), shard(1), shard(2)]
B = [shard(0), shard(4), shard(2), shard(3)]  # one changed, one appended


def corpus(folder: Path, shards: Sequence[Sequence[Document]]) -> Artifact:
    for number, documents in enumerate(shards):
        write_documents(folder / shard_name(number), documents)
    return Artifact.at(folder)


class Place:
    """A store, and runs of `tokenize` on it."""

    def __init__(self, folder: Path, tokenizer: Path, url: str = "", workers: int = 1) -> None:
        self.folder, self.tokenizer = folder, tokenizer
        self.store = Store(url or str(folder / "store"), cache=folder / "cache")
        self.runtime = runtime_of(workers=workers, threads=1, device="cpu")
        self.notes = Notes()

    def run(
        self, name: str, shards: Sequence[Sequence[Document]], *, config: TokenizeConfig = CONFIG, refresh: bool = False
    ) -> Artifact:
        documents = corpus(self.folder / name, shards)
        with open_session(Session(self.store, self.runtime, observer=self.notes)):
            made, cached = tokenize.materialize(config, (documents, Artifact.at(self.tokenizer)), refresh=refresh)
        assert not cached
        return made

    @property
    def workspace(self) -> Path:
        (folder,) = (self.store.local / "work").iterdir()
        return folder


def manifest(made: Artifact) -> Manifest:
    assert made.manifest is not None
    return made.manifest


def reused(made: Artifact) -> int:
    return int(manifest(made).facts["shards_reused"])


def same_files(one: Artifact, other: Artifact) -> set[str]:
    """The names of files that are hard links to one file."""
    return {
        name
        for name in manifest(one).files.keys() & manifest(other).files.keys()
        if (one.path / name).samefile(other.path / name)
    }


@pytest.mark.parametrize(
    ("encoder", "workers", "url"),
    [("tokenizer", 1, ""), ("tokenizer", 2, ""), ("foreign", 2, ""), ("tokenizer", 1, "memory://incremental")],
)
def test_only_new_and_changed_shards_are_encoded_and_the_artifact_is_the_same(
    tmp_path: Path, encoder: str, workers: int, url: str, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(encoder)
    place = Place(tmp_path / "place", folder, url and f"{url}-{tmp_path.name}", workers)
    first = place.run("a", A)
    second = place.run("b", B)
    fresh = Place(tmp_path / "fresh", folder).run("b", B)
    assert (reused(first), reused(second), reused(fresh)) == (0, 2, 0)
    assert f"2 of 4 shards taken from {first.location}" in place.notes.said
    assert {Path(name).stem for name in same_files(first, second)} == {"00000", "00002"}
    assert second.digest == fresh.digest
    assert manifest(second).key == manifest(fresh).key
    assert manifest(second).counts == manifest(fresh).counts
    assert manifest(second).counts["encoder"]["by"] == ("gristmill" if encoder == "tokenizer" else "tokenizers")
    assert manifest(second).uses == {}, "what is taken over is no ancestor"


def test_a_shard_is_known_by_its_bytes_wherever_it_stands(tokenizer: Path, tmp_path: Path) -> None:
    place = Place(tmp_path / "place", tokenizer)
    place.run("a", A)
    made = place.run("b", [shard(5), shard(2), shard(1), shard(2)])
    assert reused(made) == 3
    fresh = Place(tmp_path / "fresh", tokenizer).run("b", [shard(5), shard(2), shard(1), shard(2)])
    assert made.digest == fresh.digest
    again = place.run("c", [shard(5), *A])
    assert reused(again) == 4, "from the newest what it has, from the one before the rest"


def test_a_shard_without_a_document_of_a_split_is_taken_without_its_file(tokenizer: Path, tmp_path: Path) -> None:
    alone = [Document.new("The fox lives in the wood.", "a")]
    place = Place(tmp_path / "place", tokenizer)
    place.run("a", [shard(0), alone])
    made = place.run("b", [shard(0), shard(1), alone])
    assert reused(made) == 2
    assert len({"train/00002.tokens", "validation/00002.tokens"} & manifest(made).files.keys()) == 1
    assert made.digest == Place(tmp_path / "fresh", tokenizer).run("b", [shard(0), shard(1), alone]).digest


def test_another_tokenizer_another_config_and_a_refresh_take_nothing(
    tokenizer: Path, foreign: Path, tmp_path: Path
) -> None:
    place = Place(tmp_path / "place", tokenizer)
    first = place.run("a", A)
    assert reused(place.run("config", B, config=TokenizeConfig(validation_share=0.3))) == 0
    assert reused(place.run("refresh", B, refresh=True)) == 0
    place.tokenizer = foreign
    assert reused(place.run("foreign", B)) == 0
    place.tokenizer = shutil.copytree(tokenizer, tmp_path / "prompted otherwise")
    (place.tokenizer / "chat_template.jinja").write_text("{{ messages }}")
    assert reused(place.run("template", B)) == 0, "its digest is in every shard"
    place.tokenizer = tokenizer
    place.store.remove(first.location)
    assert reused(place.run("back", [*B, shard(5)])) == 4, "not the newest of all, the newest with this tokenizer"


def change_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("file", "taken", "said"),
    [
        ("train/00000.tokens", 1, "train/00000.tokens can't be taken"),
        ("validation/00002.sources", 1, "validation/00002.sources can't be taken"),
        ("shards.json", 0, "shards.json has changed bytes"),
    ],
)
def test_a_damaged_file_is_not_taken_and_a_note_says_so(
    tokenizer: Path, tmp_path: Path, file: str, taken: int, said: str
) -> None:
    place = Place(tmp_path / "place", tokenizer)
    first = place.run("a", A)
    change_a_byte(first.path / file)
    damaged = (first.path / file).read_bytes()
    made = place.run("b", B)
    assert reused(made) == taken
    assert any(said in note for note in place.notes.said)
    assert made.digest == Place(tmp_path / "fresh", tokenizer).run("b", B).digest
    assert (first.path / file).read_bytes() == damaged, "the shard that was made anew is another file"


def test_an_artifact_that_lacks_a_file_is_passed_over_for_an_older_one(tokenizer: Path, tmp_path: Path) -> None:
    place = Place(tmp_path / "place", tokenizer)
    place.run("a", A)
    newer = place.run("newer", [*A, shard(3)])
    (newer.path / "train/00001.tokens").unlink()
    made = place.run("b", B)
    assert reused(made) == 2
    assert any(f"nothing is taken from {newer.location}: " in note for note in place.notes.said)
    assert made.digest == Place(tmp_path / "fresh", tokenizer).run("b", B).digest


def test_ids_of_kernels_that_turn_out_faulty_are_not_taken(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange_letters(monkeypatch)
    quiet = [Document.new("the fox lives in the wood", "a"), *shard(0)]  # the first alone is sure to be checked
    place = Place(tmp_path / "place", tokenizer)
    first = place.run("a", [quiet])
    assert manifest(first).counts["encoder"]["by"] == "gristmill"
    loud = [Document.new("The fox", "a")]
    second = place.run("b", [quiet, loud])
    assert manifest(second).counts["encoder"]["by"] == "tokenizers"
    assert reused(second) == 0
    fresh = Place(tmp_path / "fresh", tokenizer).run("b", [quiet, loud])
    assert (second.digest, manifest(second).counts) == (fresh.digest, manifest(fresh).counts)
    assert second.digest != first.digest
    third = place.run("c", [loud, quiet])
    assert reused(third) == 2, "what `tokenizers` made serves `tokenizers`"


def test_what_was_taken_is_not_taken_twice_after_a_stop(tokenizer: Path, tmp_path: Path) -> None:
    place = Place(tmp_path / "place", tokenizer)
    first = place.run("a", A)
    documents = corpus(tmp_path / "place" / "b", B)
    last = documents.path / shard_name(3)
    whole = last.read_bytes()
    inputs = (documents, Artifact.at(tokenizer))  # hashed while it is whole
    with open_session(Session(place.store, place.runtime, observer=place.notes)):
        last.write_bytes(b"not Parquet")
        with pytest.raises(DamagedArtifact, match="can't be read as a Parquet shard"):
            tokenize.materialize(CONFIG, inputs)
        assert len(list(place.workspace.glob("scratch/encoded/*/result.json"))) == 3
        last.write_bytes(whole)
        place.store.remove(first.location)
        made, _ = tokenize.materialize(CONFIG, inputs)
    assert reused(made) == 2, "they lay in the working folder, though their artifact is gone"
    assert made.digest == Place(tmp_path / "fresh", tokenizer).run("b", B).digest


def test_a_file_is_copied_where_it_cannot_be_linked(tmp_path: Path) -> None:
    elsewhere = Path("/dev/shm")
    if not elsewhere.is_dir() or elsewhere.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs two file systems")
    source = elsewhere / f"gristmill-{os.getpid()}-{random.random()}"
    source.write_bytes(b"ids")
    try:
        assert link(source, tmp_path / "copy")
    finally:
        source.unlink()
    assert (tmp_path / "copy").read_bytes() == b"ids"
    assert not link(source, tmp_path / "gone")


MORE_SIGNALS = [
    "filter.repair={}",
    "filter.code={}",
    "filter.mathematics={}",
    "filter.lists={measure: {words: {en: words.txt}}, keep_listed_words: {en: 0.5}}",
    "filter.signals={shouts: {measure: {kind: python, file: shouts.py, columns: [loud]}, max: {loud: 1}}}",
]


@pytest.mark.soak
def test_of_an_appended_source_only_its_own_shards_are_worked_through_in_every_stage(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And all artifacts are those of a store that has seen nothing before."""
    from profiles.load import load
    from tasks.dedup import dedup
    from tasks.download import download
    from tasks.filter import filter_documents

    monkeypatch.chdir(tmp_path)
    Path("words.txt").write_text("fox\n")
    Path("shouts.py").write_text("def measure(texts):\n    return {'loud': ['!' in text for text in texts]}\n")

    def run(store: Store, *corpora: str) -> dict[str, Artifact]:
        sources = ", ".join(f"{{kind: embedded, corpora: [{name}], limit: 60}}" for name in corpora)
        profile = load("smoke", [f"download.sources=[{sources}]", "download.shard_documents=30", *MORE_SIGNALS])
        assert profile.dedup is not None
        assert profile.filter is not None
        with open_session(Session(store, runtime_of(workers=1, threads=1, device="cpu"))) as session:
            raw, _ = download.materialize(profile.download, ())
            unique, _ = dedup.materialize(profile.dedup, (raw.part("documents"),))
            clean, _ = filter_documents.materialize(profile.filter, (unique.part("documents"), raw.part("benchmarks")))
            tokenize.materialize(profile.tokenize, (clean.part("documents"), Artifact.at(tokenizer)))
        return {name: step.artifact for name, step in session.steps.items() if not step.cached}

    store = Store(str(tmp_path / "store"))
    first = run(store, "encyclopedia")
    grown, fresh = (
        run(store, "encyclopedia", "packages"),
        run(Store(str(tmp_path / "fresh")), "encyclopedia", "packages"),
    )
    assert {name: grown[name].digest for name in grown} == {name: fresh[name].digest for name in grown}
    before, shards = (len(made["download"].part("documents").names("*.parquet")) for made in (first, grown))
    assert 1 < before < shards
    by_shard = {name: reused(made) for name, made in grown.items() if "shards_reused" in manifest(made).facts}
    assert set(by_shard.values()) == {before}
    families = {"form", "language", "toxicity", "code", "mathematics", "lists", "signals.shouts"}
    assert by_shard.keys() == {"sketches", "repair", "tokenize", *families}
    documents = {name: manifest(made).facts.get("documents_reused") for name, made in grown.items()}
    assert {name for name, taken in documents.items() if taken} == {"pii", "pii_metadata"}


def test_a_kept_vocabulary_stays_and_only_new_shards_are_tokenized(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    config = TokenizerConfig(vocab_size=600, min_frequency=3)
    first, more = corpus(tmp_path / "first", A), corpus(tmp_path / "more", [*A, shard(4)])
    with open_session(Session(store, runtime_of(workers=1, threads=1, device="cpu"), "tiny")):
        learned, _ = train_tokenizer.materialize(config, [first])
        tokenize.materialize(CONFIG, [first, learned])
        again, _ = train_tokenizer.materialize(config, [more])
        assert again.digest != learned.digest  # else the rest would show nothing
        keeps = config.model_copy(update={"keep": "tiny/tokenizer@1"})
        kept, cached = train_tokenizer.materialize(keeps, [more])
        assert not cached
        assert kept.digest == learned.digest
        assert manifest(kept).uses["tokenizer.keep tiny/tokenizer@1"].location == learned.location
        compares = keeps.model_copy(update={"compare": {"itself": str(learned.path)}})
        compared, _ = train_tokenizer.materialize(compares, [more])
        rows = manifest(compared).counts["tables"]["Bytes per token beside other vocabularies"]
        assert [row.pop("source") for row in rows] == ["source0", "source1"]
        assert all(ours == theirs > 1 for ours, theirs in map(dict.values, rows))
        assert compared.digest == learned.digest
        tokens, _ = tokenize.materialize(CONFIG, [more, kept])
        assert reused(tokens) == len(A)
        for change, problem in (
            ({"keep": "tiny/tokenizer"}, "moves"),
            ({"keep": "tiny/tokenize@1"}, "is not a tokenizer"),
            ({"vocab_size": 300}, "has vocab_size"),
            ({"pattern": "gpt4"}, "has pattern gpt2"),
        ):
            with pytest.raises(ConfigError, match=problem):
                train_tokenizer.materialize(keeps.model_copy(update=change), [more])
        with pytest.raises(DamagedArtifact, match="special token"):
            train_tokenizer.materialize(keeps.model_copy(update={"reserved_tokens": 2}), [more])
