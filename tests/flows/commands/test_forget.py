"""A takedown from end to end: traced, planned, carried out at the cost of its shards, proved, or refuted by name."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from flows.commands.documents.reads import reads_of
from flows.commands.documents.search import Decoder
from profiles.load import load
from storage import refs
from storage.artifact import Artifact
from storage.digests import list_files, tree_digest
from storage.keys import KeyPayload
from storage.manifest import InputRef, Manifest
from storage.shards.documents import document_id
from storage.shards.tokens import open_tokens
from storage.store import Store
from tasks.download.exclude import Exclusion
from tasks.pretrain import PretrainConfig, pretrain
from tasks.pretrain.loader import open_loader
from tasks.tokenizer import load_for_documents
from tasks.tokenizer.bpe.alphabet import unspell
from tasks.tokenizer.encoder.tables import read_settings
from tests.flows.commands.test_cli import gristmill
from tests.flows.commands.test_runs import run_stages
from tests.tasks.pretrain.tiny_training import CONFIG
from tests.tasks.tiny_model import make_tokenizer, texts

NUMBERS = [f"{tens}{ones}" for tens in ("twenty", "thirty", "forty", "fifty") for ones in ("one", "two", "six", "ten")]
OWN = random.Random(4).choices([f"{a}{b}" for a in NUMBERS for b in ("ly", "er", "st", "ed")], k=110)
BODY = " ".join([*OWN[:50], "ada@example.org", *OWN[50:]])
GONE = f"\u03a9\u03a8 {BODY}"  # letters that no other text has
ID = document_id(GONE)
PLANTED = {
    "near-duplicate": BODY.upper().replace(" ", "\r\n").replace("FORTYONE", "nothing", 1),
    "contains it": "A page of links. " * 9 + BODY.replace("ada@example.org", "<EMAIL_ADDRESS>") + " More links." * 9,
    "quotes it": "They wrote: " + " ".join(OWN[40:100]) + " and so on.",
    "made from it": "A summary in a model's own words, which shares nothing.",
}
RETOLD = "A summary of that summary, with no word of the first."
FURTHER = {document_id(text): kind for kind, text in PLANTED.items()} | {document_id(RETOLD): "made from it"}
REWRITTEN = "The same facts in other words: there were many numbers, and each had an ending of its own."
QUOTING = {"prompt": "Please recite.", "completion": " ".join(OWN[:50]) + " then " + " ".join(OWN[50:70])}
FEW = ["download.benchmarks=[]", "dedup=null", "filter=null", "tokenizer.vocab_size=300", "sft=null", "dpo=null"]


class Lineage(NamedTuple):
    """A store with three runs: with the document, without it, and without what is like it."""

    store: Path
    further: list[dict[str, Any]]
    planned: dict[str, Any]


def forget(store: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """The status, and what it prints as JSON."""
    said = gristmill("forget", *arguments, "--json", "--store", str(store))
    return said.returncode, json.loads(said.stdout) if said.stdout else {"error": said.stderr}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Lineage:
    folder = tmp_path_factory.mktemp("takedown")
    store = folder / "store"
    rest: list[dict[str, Any]] = [
        {"text": text, "meta": {"url": f"https://x.org/{n}"}} for n, text in enumerate(texts())
    ]
    planted: list[dict[str, Any]] = [{"text": text} for kind, text in PLANTED.items() if kind != "made from it"]
    summary = PLANTED["made from it"]
    planted += [{"text": summary, "meta": {"made_from": ID}}]
    planted += [{"text": RETOLD, "meta": {"made_from": [document_id(summary)]}}]
    a = [{"text": GONE, "meta": {"url": "https://y.org/gone"}}, *planted, {"text": REWRITTEN}, *rest[:90]]
    pairs: list[dict[str, Any]] = [QUOTING, {"prompt": "Who?", "completion": "Nobody."}]
    for name, rows in (("a", a), ("b", rest[90:]), ("pairs", pairs)):
        (folder / f"{name}.jsonl").write_text("\n".join(json.dumps(row) for row in rows))

    def run(*more: str) -> None:
        sources = [f"{{kind: files, name: {name}, paths: ['{folder}/{name}.jsonl']}}" for name in "ab"]
        sources.append(f"{{kind: files, name: qa, role: instructions, paths: ['{folder}/pairs.jsonl']}}")
        everything = [f"download.sources=[{', '.join(sources)}]", *FEW, f"runtime.store={store}", *more]
        run_stages(load("smoke", everything), "tokenize")

    run()
    status, planned = forget(store, ID, "--of", "smoke/tokenize@1")
    assert status == 0
    run(f"download.exclude=[{ID}]")
    (folder / "pairs.jsonl").write_text(json.dumps({"prompt": "Who?", "completion": "Nobody."}))
    run(f"download.exclude=[{', '.join([ID, *(one['row'] for one in planned['further'])])}]")
    return Lineage(store, planned["further"], planned)


def test_a_plan_names_what_is_like_the_document_and_what_learned_from_it(made: Lineage) -> None:
    assert {one["row"]: one["kind"] for one in made.further} == FURTHER
    assert {(one["file"].split("/")[0], one["kind"]) for one in made.planned["elsewhere"]} == {
        ("instructions", "quotes it")
    }
    assert made.planned["exclude"] == [ID]
    assert made.planned["again"] == ["download", "tokenizer", "tokenize"]
    said = gristmill("forget", ID, "--of", "smoke/tokenize@1", "--store", str(made.store)).stdout
    assert f"download:\n  exclude:\n    - {ID}\n" in said
    assert f"    - {document_id(PLANTED['quotes it'])}  # quotes it, 60 words" in said


def test_what_is_left_of_it_refutes_a_takedown_by_name(made: Lineage) -> None:
    status, said = forget(made.store, ID, "--verify", "smoke/tokenize@2")
    assert status == 1
    in_documents = {one["row"]: one["kind"] for one in said["findings"] if one["file"].startswith("documents/")}
    assert in_documents == FURTHER
    kinds = Counter(one["kind"] for one in said["findings"] if one["file"].endswith(".tokens"))
    assert kinds == {kind: 1 for kind in PLANTED if kind != "made from it"}
    (pair,) = (one for one in said["findings"] if one["file"].startswith("instructions/"))
    assert pair["value"] == 70
    assert pair["quotation"].startswith(" ".join(OWN[:3]))
    shown = gristmill("forget", ID, "--verify", "smoke/tokenize@2", "--store", str(made.store)).stdout
    assert "quotes it, 60 words" in shown
    assert "Nothing" not in shown
    assert forget(made.store, ID, "--verify", "smoke/tokenize@2", "--words", "80")[1]["findings"] != said["findings"]


def test_a_takedown_is_proved_and_costs_its_shards(made: Lineage) -> None:
    status, said = forget(made.store, ID, "--verify", "smoke/tokenize@3")
    assert (status, said["proved"], said["findings"], said["without_text"]) == (0, True, [], [])
    assert {one["location"].split("/")[0]: one["how"] for one in said["left"] if one["names"]} == {
        "download": "holds it",
        "tokenizer": "learned from it",
        "tokenize": "learned from it",
    }
    assert said["kept_by"] == {}
    store = Store(str(made.store))
    files = [
        {path.name: path.stat().st_ino for path in store.get(refs.resolve(store, ref)).files("documents/*.parquet")}
        for ref in ("smoke/download@1", "smoke/download@3")
    ]
    assert files[0].keys() == files[1].keys()
    assert {name for name in files[0] if files[0][name] == files[1][name]} == {"00001.parquet"}
    assert forget(made.store, "y.org", "--verify", "smoke/tokenize@3")[0] == 0
    assert forget(made.store, "https://y.org/gone", "--verify", "smoke/tokenize@1")[0] == 1
    shown = gristmill("forget", ID, "--verify", "smoke/tokenize@3", "--store", str(made.store))
    assert "Nothing of it, like it or made from it is in the" in shown.stdout
    assert f"gristmill store gc --delete --store {made.store}" in shown.stdout


def test_without_its_text_nothing_but_ids_is_proved(made: Lineage, tmp_path: Path) -> None:
    other = document_id("A text that was never here.")
    for more, status in (((), 1), (("--exact",), 0), (("--text", str(tmp_path / "it.txt")), 0)):
        (tmp_path / "it.txt").write_text("A text that was never here.")
        found, said = forget(made.store, other, "--verify", "smoke/tokenize@3", *more)
        assert (found, said["proved"], said["without_text"]) == (status, not status, [other] if status else [])
    (tmp_path / "it.txt").write_text(PLANTED["near-duplicate"])
    assert forget(made.store, "--text", str(tmp_path / "it.txt"), "--verify", "smoke/tokenize@2")[0] == 1


def test_a_url_that_names_nothing_is_not_proved_by_one_that_does(made: Lineage) -> None:
    for item in ("https://y.org/gnoe", "z.org"):
        asked = (ID, "https://y.org/gone", item, "--verify", "smoke/tokenize@3")
        status, said = forget(made.store, *asked)
        assert (status, said["proved"], said["without_text"]) == (1, False, [item])
        assert f"The text of {item} is in no artifact" in gristmill("forget", *asked, "--store", f"{made.store}").stdout
        assert forget(made.store, *asked, "--exact")[0] == 0


def test_pairs_that_hold_an_old_download_are_named_with_what_releases_it(tmp_path: Path) -> None:
    """Pairs didn't change, so the run takes them from before, and with them the download that they were read from."""
    store = Store(str(tmp_path / "store"))
    row = {"id": [ID], "source": ["a"], "text": [GONE], "metadata": ["{}"]}
    downloads: list[Artifact] = []
    for columns in (row, {name: ["x"] for name in row}):
        (folder := tmp_path / f"{len(downloads)}").mkdir()
        pq.write_table(pa.table(columns), folder / "00000.parquet")
        contents = {"documents/00000.parquet": (folder / "00000.parquet").read_bytes(), "instructions/a.jsonl": b"{}"}
        downloads.append(published(store, "download", contents | {f"{len(downloads)}.txt": b"other settings"}))
    read = [InputRef(location=one.location, part="instructions") for one in downloads]
    pairs = published(store, "pairs", {"a.jsonl": b"{}"}, origins={"instructions": read[0]})
    documents = InputRef(location=downloads[1].location, part="documents")
    tuned = published(store, "sft", {"a.txt": b"a"}, origins={"p": InputRef(location=pairs.location), "d": documents})
    refs.move(store, "mine/sft", tuned.location, tuned.digest)
    status, said = forget(tmp_path / "store", ID, "--verify", "mine/sft")
    assert (status, said["kept_by"]) == (0, {"mine/sft": {"locations": [downloads[0].location], "refresh": ["pairs"]}})
    shown = gristmill("forget", ID, "--verify", "mine/sft", "--store", str(tmp_path / "store")).stdout
    assert "run mine with the same edit and --refresh pairs" in shown
    published(store, "pairs", {"a.jsonl": b"{}"}, origins={"instructions": read[1]})
    said = forget(tmp_path / "store", ID, "--verify", "mine/sft")[1]
    assert (said["kept_by"], said["unfinished"]) == ({}, [])
    left = store.workspace("download", "killed")
    assert forget(tmp_path / "store", ID, "--verify", "mine/sft")[1]["unfinished"] == [left.name]


def test_what_cannot_be_traced_is_named_and_never_taken_for_nothing(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    pq.write_table(pa.table({"id": [ID], "source": ["a"], "text": [GONE], "metadata": ["{}"]}), tmp_path / "0.parquet")
    held = published(store, "filter", {"documents/00000.parquet": (tmp_path / "0.parquet").read_bytes()})
    origin = InputRef(location=held.location, part="documents")
    tokens = published(store, "tokenize", {"a.txt": b"a"}, origins={"documents": origin})
    (path,) = held.files("documents/*.parquet")
    whole = path.read_bytes()
    path.chmod(0o600)
    for damaged in (whole.replace(ID[:9].encode(), b"123456789"), whole[:-1]):
        path.write_bytes(damaged)
        for command in ("trace", "forget"):
            said = gristmill(command, ID, "--store", str(tmp_path / "store"))
            assert said.returncode == 1
            assert "00000.parquet" in said.stderr
    store.remove(held.location)
    for more in ([], ["--of", tokens.location], ["--json"]):
        said = gristmill("trace", ID, "--store", str(tmp_path / "store"), *more)
        assert said.returncode == 1
        assert f"Not searched: {held.location}, which isn't in the store" in said.stderr
        assert "that can be searched holds it" in said.stdout or said.stdout == "[]\n"
    (gap,) = forget(tmp_path / "store", ID)[1]["not_searched"]
    assert held.location in gap


def test_what_cannot_be_searched_ends_the_proof_by_name(made: Lineage) -> None:
    store = Store(str(made.store))
    tokens = store.get(refs.resolve(store, "smoke/tokenize@3"))
    path = tokens.files("train/*.tokens")[0]
    whole = path.read_bytes()
    for damaged in (whole[:-9], whole[:-9] + b"\0" * 9):
        path.chmod(0o600)
        path.write_bytes(damaged)
        status, said = forget(made.store, ID, "--verify", "smoke/tokenize@3")
        assert status == 1
        assert path.name in said["error"]
    path.write_bytes(whole)
    manifest = made.store / "artifacts" / refs.resolve(store, "smoke/download@3") / "manifest.json"
    whole = manifest.read_bytes()
    manifest.write_bytes(b"{")
    assert "Not searched: " in gristmill("trace", ID, "--store", str(made.store)).stderr
    broken = forget(made.store, ID, "--verify", "smoke/tokenize@3")
    manifest.unlink()
    for status, said in (broken, forget(made.store, ID, "--verify", "smoke/tokenize@3")):
        assert status == 1
        assert manifest.parent.name in said["error"]
    manifest.write_bytes(whole)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "Nothing says which document"),
        ((ID, "--of", "a/b", "--verify", "a/b"), "--of is for a plan"),
        ((ID, "x.org", "--text", "it.txt"), "--text is the text of one document"),
        ((ID, "--text", "missing.txt"), "missing.txt can't be read"),
        ((ID, "--text", "/dev/null"), "/dev/null has no text"),
        (("1f38",), "neither an id"),
        ((ID, "--verify", "smoke/never"), "neither a ref nor an artifact"),
    ],
)
def test_what_a_takedown_cannot_be_of_is_refused_by_name(arguments: tuple[str, ...], named: str, made: Lineage) -> None:
    said = gristmill("forget", *arguments, "--store", str(made.store))
    assert said.returncode == 1
    assert named in said.stderr


def published(store: Store, stage: str, contents: Mapping[str, str | bytes], **fields: Any) -> Artifact:
    """An artifact with these files."""
    folder = store.workspace(stage, f"{len(contents)}")
    for name, text in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    files = list_files(folder)
    payload = KeyPayload(stage=stage, version=1, config={"of": sorted(contents)}, inputs={})
    given = {"key": payload.key(), "payload": payload, "digest": tree_digest(files), "files": files} | fields
    return store.publish(folder, Manifest(created="2026-01-01T00:00:00.000000", **given))


@pytest.mark.parametrize(
    ("contents", "status", "found"),
    [
        ({"benchmarks/quiz.jsonl": json.dumps({"id": "q1", "query": BODY})}, 0, {("q1", "near-duplicate")}),
        ({"README.md": "\n".join([*list(texts())[:5], BODY])}, 1, {("1", "contains it")}),
        (
            {"chats/a.jsonl": json.dumps({"turns": [{"says": " ".join(part)} for part in (OWN[:30], OWN[30:55])]})},
            1,
            {("1", "quotes it")},
        ),
        ({"chats/a.jsonl": json.dumps({"by": {"made_from": ID}})}, 1, {("1", "made from it")}),
        ({"chats/a.jsonl.gz": BODY}, 1, set()),
        ({"model.safetensors": BODY, "notes.txt": "nothing"}, 0, set()),
    ],
    ids=["a benchmark is named only", "a card", "a chat in turns", "made by a model", "unknown", "weights aren't text"],
)
def test_every_kind_of_file_is_searched(
    contents: dict[str, str], status: int, found: set[tuple[str, str]], tmp_path: Path
) -> None:
    store = Store(str(tmp_path / "store"))
    first = published(store, "base", contents)
    second = published(store, "pairs", {**contents, "b.txt": ""}, uses={"it": InputRef(location=first.location)})
    (tmp_path / "it.txt").write_text(BODY)
    ended, said = forget(tmp_path / "store", ID, "--text", f"{tmp_path}/it.txt", "--verify", second.location)
    named = said["findings"] + said["benchmarks"]
    assert (ended, {(one["row"], one["kind"]) for one in named}) == (status, found)
    assert {one["location"] for one in named} == ({first.location, second.location} if found else set())
    assert said["searched"]["unread"] == ({".safetensors": 2} if "model.safetensors" in contents else {})


def test_documents_of_a_host_are_searched_for_in_portions(made: Lineage, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ("x.org", "--verify", "smoke/tokenize@3", "--similarity", "1")

    def places() -> set[tuple[str, str, str]]:
        status, said = forget(made.store, *asked)
        assert status == 1
        return {(one["location"], one["file"], one["row"]) for one in said["findings"]}

    whole = places()
    assert len(whole) > 300, "documents and tokens"
    monkeypatch.setattr("flows.commands.documents.forget.PORTION", 15_000)
    assert places() == whole


def test_a_pair_of_a_named_host_is_found(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    row = {"id": "p1", "prompt": "?", "meta": {"url": "https://en.y.org/page"}}
    artifact = published(store, "pairs", {"a.jsonl": json.dumps(row)})
    status, said = forget(tmp_path / "store", "y.org", "--verify", artifact.location, "--exact")
    assert (status, [(one["row"], one["kind"]) for one in said["findings"]]) == (1, [("p1", "the document")])
    assert len(forget(tmp_path / "store", "y.org")[1]["elsewhere"]) == 1


@pytest.mark.parametrize("kind", ["bytes", "words"])
def test_tokens_are_decoded_as_the_library_does(kind: str, tmp_path: Path) -> None:
    rows = [*PLANTED.values(), "", GONE, "caf\u00e9 \u4e2d\u6587 \U0001f600"]
    if kind == "bytes":
        folder = make_tokenizer(tmp_path / "tokenizer")
    else:
        words = sorted({word for row in rows for word in row.split()})
        library = Tokenizer(WordLevel({word: number for number, word in enumerate(["?", *words])}, unk_token="?"))
        library.pre_tokenizer = WhitespaceSplit()
        (folder := tmp_path / "words").mkdir()
        library.save(str(folder / "tokenizer.json"))
    library = load_for_documents(folder)
    ids = [encoded.ids for encoded in library.encode_batch(rows)]
    lengths = np.array([len(one) for one in ids])
    found = Decoder(Artifact.at(folder)).texts(np.concatenate([np.array(one, np.uint16) for one in ids]), lengths)
    assert found.to_pylist() == library.decode_batch(ids)


def trained(store: Store) -> Artifact:
    """An artifact that says that it was trained on the tokens of the first run."""
    config = CONFIG.model_dump(mode="json") | {"steps": 300, "global_batch": 4}
    origins = {"tokens": InputRef(location=refs.resolve(store, "smoke/tokenize@1"))}
    payload = KeyPayload(stage="pretrain", version=pretrain.version, config=config, inputs={})
    given = {"key": payload.key(), "payload": payload, "origins": origins, "counts": {"steps": 300}}
    return published(store, "pretrain", {"log.jsonl": ""}, **given)


def test_the_steps_that_read_a_document_are_traced_or_it_is_said_why_not(made: Lineage) -> None:
    store = Store(str(made.store))
    artifact = trained(store)

    tuned = published(store, "sft", {"a": ""}, origins={"model": InputRef(location=artifact.location, part="model")})
    raw = InputRef(location=refs.resolve(store, "smoke/download@1"), part="instructions")
    pairs = published(store, "pairs", {"b": ""}, origins={"instructions": raw})
    listed = json.loads(gristmill("trace", ID, "--store", str(made.store), "--json").stdout)
    traced = {one["location"]: one for one in listed}
    assert traced[tuned.location]["how"] == "learned from it"
    assert traced[tuned.location]["reads"] is None
    assert pairs.location not in traced
    found = traced[artifact.location]["reads"]
    tokens = store.get(refs.resolve(store, "smoke/tokenize@1"))
    vocabulary = read_settings(store.get(refs.resolve(store, "smoke/tokenizer@1")).path)["model"]["vocab"]
    paths = tokens.files("train/*.tokens")
    header = open_tokens(paths[0]).header
    config = PretrainConfig.model_validate(artifact.manifest.payload.config if artifact.manifest else {})
    loader = open_loader(paths, config, context=32, tokenizer_digest=header.tokenizer_digest)
    greek = [number for token, number in vocabulary.items() if max(unspell(token) or b" ") > 127]
    begun = {
        step
        for step in range(1, 301)
        for batch in loader.micro_batches(step, rank=0, ranks=1, size=4)
        if np.isin(batch.ids, greek).any()
    }
    steps = {int(step) for step in found["steps"]}
    assert begun
    assert begun <= steps  # that read its beginning
    assert (found["documents"], found["of"]) == (1, 300)
    said = gristmill("trace", ID, "--of", artifact.location, "--store", str(made.store)).stdout
    assert f"{found['tokens']:,} tokens in {len(steps)} of 300 steps" in " ".join(said.split())


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"facts": {"adopted": "elsewhere"}}, "it was adopted"),
        ({"counts": {"steps": 300, "skipped_batches": 2}}, "it skipped batches"),
        ({"origins": {}}, "its tokens aren't in the store"),
    ],
)
def test_steps_are_never_guessed(changes: dict[str, Any], why: str, made: Lineage) -> None:
    artifact = trained(Store(str(made.store)))
    assert artifact.manifest is not None
    other = Artifact(artifact.folder, artifact.digest, artifact.manifest.model_copy(update=changes))
    assert why in reads_of(Store(str(made.store)), other, Exclusion([ID])).unknown
