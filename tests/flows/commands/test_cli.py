"""The command line: bad input gives one clear message and exit code 1, and the store's commands tell the truth."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer

from flows import cli
from flows.cli import main
from flows.commands.store import _sources
from flows.options import STORELESS, as_given
from flows.pages.report import result_of
from flows.records.settings import chosen
from flows.stop import SIGNALS
from profiles.load import load, names
from profiles.stage_names import STAGE_NAMES
from storage import refs
from storage.artifact import Artifact
from storage.digests import list_files, tree_digest
from storage.errors import OF_MANY, StoreError, make_again
from storage.keys import KeyPayload
from storage.manifest import InputRef, Manifest
from storage.shards.documents import Document, Verdict, shard_name, write_documents, write_ledger
from storage.shards.lines import write_json_lines
from storage.store import Store
from tasks.dedup import DedupConfig, dedup
from tasks.pretrain import PretrainConfig
from tasks.stage.output import Output
from tests.runtimes import runtime_of

ROOT = Path(__file__).parents[3]


def gristmill(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, in this process: it begins 15 times here, and its imports take seconds."""
    out, err, argv = io.StringIO(), io.StringIO(), sys.argv
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *SIGNALS)}
    sys.argv = ["gristmill", *arguments]
    try:
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main()
    finally:
        sys.argv = argv
        for number, handler in before.items():  # a command ignores signals once it has ended
            signal.signal(number, handler)
    return subprocess.CompletedProcess(arguments, int(ended.value.code or 0), out.getvalue(), err.getvalue())


def publish(
    store: Store, stage: str, files: dict[str, bytes], *origins: str, profile: str = "tiny", **config: object
) -> str:
    """Publish an artifact with these files, and move the ref PROFILE/STAGE to it. `origins` are its inputs."""
    payload = KeyPayload(stage=stage, version=1, config=config, inputs={})
    folder = store.workspace(stage, payload.key()) / "out"
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    listed = list_files(folder)
    made = datetime.now(UTC).isoformat()
    manifest = Manifest(
        key=payload.key(),
        payload=payload,
        digest=tree_digest(listed),
        files=listed,
        origins={one: InputRef(location=one) for one in origins},
        created=made,
    )
    artifact = store.publish(folder, manifest)
    refs.move(store, f"{profile}/{stage}", artifact.location, artifact.digest)
    return artifact.location


@pytest.mark.parametrize(
    ("arguments", "named", "remedy"),
    [
        (["run", "tinny"], "Profile tinny does not exist.", "Did you mean tiny?"),
        (["plan", ""], "The profile's name is empty.", "Choose one of cluster"),
        (["plan", f"{'a' * 300}.yaml"], "Profile aaa", "give the path"),
        (["plan", "tiny", "--set", "runtime.approve_hours=1e9"], "runtime.approve_hours", "profile schema"),
        (["runs", "--store", ""], "The address of the store is empty.", "--store to a folder"),
        (["run", "tiny", "--set", "filter.toxicty.max_score=1"], "unknown key filter.toxicty", "profile schema"),
        (["run", "tiny", "--to", "pretrian"], "Unknown stage pretrian.", "Did you mean pretrain?"),
        (["run", "tiny", "--to", "form"], "form is made within filter", "End after filter"),
        (["stage", "form", "tiny"], "form is made within filter", "End after filter"),
        (["run", "tiny", "--set", "dpo=null", "--to", "dpo"], "leaves out dpo", "The stages are download"),
        (
            ["run", "tiny", "--refresh", "pretrain", "--to", "filter"],
            "pretrain comes after filter",
            "end the run later",
        ),
        (["explain", ""], "'' is too short for an id", "first 4 characters"),
        (["explain", "3f8"], "'3f8' is too short for an id", "first 4 characters"),
        (["why", "form"], "form is made within filter", "End after filter"),
        (
            ["plan", "tiny", "--set", "runtime.pretrain.tensor_parallel=2", "--set", "runtime.training.processes=2"],
            "runtime.pretrain.tensor_parallel is 2, which the engine deepspeed",
            "Set runtime.pretrain.engine to ddp or fsdp",
        ),
        (["plan", "tiny", "--set", "runtime.training.hosts=2"], "each needs the other", "host:port"),
        (
            ["plan", "tiny", "--set", "pretrain.optimizer=muon", "--set", "runtime.pretrain.zero_stage=1"],
            "muon does not work with runtime.pretrain.zero_stage 1",
            "pretrain.optimizer to adamw, with muon_learning_rate null",
        ),
        (["run", "tiny", "--refresh", "nothing"], "Unknown stage nothing.", "The stages are"),
        (["why", "nothing"], "Unknown stage nothing.", "The stages are"),
        (["plan", "gpu", "--device", "h101"], "Device h101 is unknown", "Choose one of cpu, h200, h100"),
        (["chat", "tiny/export"], "No store exists at", "Check --store"),
        (["store", "ls", "--store", "nowhere"], "No store exists at nowhere.", "Check --store"),
        (["explain", "abcd"], "No document", "id"),
    ],
)
def test_a_mistake_gives_one_message_a_remedy_and_exit_1(
    arguments: list[str], named: str, remedy: str, tmp_path: Path
) -> None:
    if arguments[0] in ("run", "explain"):
        arguments = [*arguments, f"--set=runtime.store={tmp_path / 'store'}"]
    if arguments[0] == "chat":
        arguments = [*arguments, f"--store={tmp_path / 'store'}"]
    done = gristmill(*arguments)
    assert done.returncode == 1
    assert named in done.stderr
    assert remedy in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


@pytest.mark.parametrize("name", ["a" * 300, "a" * 252, "tiny/a\ud800", "a\0b"])
def test_what_can_be_no_name_is_told_so(name: str, tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    publish(store, "download", {"a.txt": b"1"})
    with pytest.raises(StoreError, match="No artifact can have this name"):
        refs.resolve(store, name)


def test_of_a_ref_or_a_profile_that_there_is_not_the_nearest_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(str(tmp_path / "store"))
    publish(store, "download", {"a.txt": b"1"})
    with pytest.raises(StoreError) as caught:
        refs.resolve(store, "tiny/dowload@1")
    assert caught.value.remedy == "Did you mean tiny/download? Its refs: tiny/download."
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("extends: tiny\ndescription: of my own\n")
    assert load("mine").description == "of my own", "the file beside it"


@pytest.mark.parametrize(
    ("content", "named"),
    [(None, "no file matches"), (b'{"text": "one"}\n{"text": "two"}\n{"text": broken\n', "mine.jsonl:3: broken_json")],
)
def test_a_bad_source_ends_the_run_and_leaves_the_store_sound(
    content: bytes | None, named: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.jsonl"
    if content is not None:
        path.write_bytes(content)
    sources = json.dumps([{"kind": "files", "name": "mine", "paths": [str(path)]}])
    store = tmp_path / "store"
    command = [sys.executable, "-m", "flows.cli", "run", "smoke", "--to=download", f"--store={store}"]
    done = subprocess.run([*command, f"--set=download.sources={sources}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert named in done.stderr
    assert "What to do:" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert list(Store(str(store)).locations()) == []


def test_a_store_of_another_version_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "gristmill.json").write_text('{"format": 99}')
    done = gristmill("run", "smoke", f"--set=runtime.store={tmp_path / 'store'}")
    assert done.returncode == 1
    assert "99" in done.stderr
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["gristmill.json"]


def test_verify_names_the_damaged_file_and_the_way_out(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    location = publish(store, "dedup", {"documents/a": b"one", "b": b"two"})
    told = gristmill("store", "verify", f"--store={store.root}")
    assert told.returncode == 0
    assert f"1/1 {location[:18]} sound" in told.stdout
    path = store.get(location).path / "documents/a"
    path.chmod(0o644)
    path.write_bytes(b"eno")
    done = gristmill("store", "verify", f"--store={store.root}")
    assert done.returncode == 1
    assert f"{location}/documents/a" in done.stderr
    assert f"gristmill run tiny --store {store.root} --refresh dedup" in done.stderr
    assert "repeat the --set options that they were made with" in done.stderr
    again = publish(store, "dedup", {"documents/a": b"one", "b": b"two"})
    assert again == f"{location}.2"
    done = gristmill("store", "verify", f"--store={store.root}")
    assert (done.returncode, done.stderr) == (0, "")
    assert "damaged, rebuilt since: gc removes it" in done.stdout
    ref = Path(store.root, "refs", "tiny", "dedup.json")
    ref.write_text(ref.read_text().replace('"digest": "', '"digest": "0'))
    done = gristmill("store", "verify", f"--store={store.root}")
    assert f"Rebuild them: gristmill run tiny --store {store.root} --refresh dedup" in done.stderr
    ref.write_text("")
    path = store.get(again).path / "b"
    path.chmod(0o644)
    path.write_bytes(b"owt")
    done = gristmill("store", "verify", f"--store={store.root}")
    assert f"Delete {ref}. Rebuild them: gristmill run tiny --store {store.root} --refresh dedup" in done.stderr
    assert gristmill("store", "verify", f"--store={store.root}x").returncode == 1


@pytest.mark.parametrize(("stage", "file"), [("ablate", "effects.json"), ("mix", "mix.json"), ("scaling", "law.json")])
def test_what_a_matrix_made_is_made_again_by_its_own_command(tmp_path: Path, stage: str, file: str) -> None:
    store = Store(str(tmp_path / "store"))
    source = publish(store, "download", {"a": b"abc"})
    trained = publish(store, "pretrain", {"b": b"abc"}, source, profile="tiny-seed-1")
    compared = publish(store, stage, {file: b"{}"}, trained)
    published = [source, trained, compared]
    for spoilt, name in ((compared, file), (trained, "b"), (source, "a")):
        path = store.get(spoilt).path / name
        path.chmod(0o644)
        path.write_bytes(b"[]")
        said = gristmill("store", "verify", f"--store={store.root}").stderr
        mine = published[published.index(spoilt) or 1 :]
        folders = ", ".join(sorted(str(Path(store.root, "artifacts", one)) for one in mine))
        assert f"Delete {folders}. Run the same `gristmill {stage} tiny --store {store.root}` again." in said
        run = f"gristmill run tiny --store {store.root} --refresh download"
        assert (run in said, "--refresh" in said) == (spoilt == source, spoilt == source)
    said = gristmill("report", f"tiny/{stage}", f"--store={store.root}").stderr
    assert f"run the same `gristmill {stage} " in said


def test_a_plan_reads_past_a_damaged_manifest_of_what_is_made_anew_but_not_past_a_damaged_ref(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    location = publish(store, "tokenizer", {"tokenizer.json": b"{}"})
    path = Path(store.root, "artifacts", location, "manifest.json")
    path.chmod(0o644)
    path.write_text("{")
    planned = gristmill("plan", "tiny", f"--store={store.root}")
    assert (planned.returncode, planned.stderr) == (0, "")
    assert "waits for" in planned.stdout
    ref = Path(store.root, "refs", "tiny", "tokenizer.json")
    ref.write_text("[]")
    for command in ("plan", "run"):
        done = gristmill(command, "tiny", f"--store={store.root}")
        assert done.returncode == 1
        assert f"Delete {ref}" in done.stderr


def test_ls_show_lineage_diff_and_gc_tell_what_is_there(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    old = publish(store, "dedup", {"a": b"one"}, threshold=0.8)
    new = publish(store, "dedup", {"a": b"two"}, threshold=0.7)
    at = f"--store={store.root}"
    refs.move(store, f"{'long' * 20}/dedup", new, store.get(new).digest)
    listed = gristmill("store", "ls", at).stdout
    assert "tiny/dedup@2" in listed
    assert f"{'long' * 20}/dedup@1  {new[:18]}" in listed, "piped, a row is one line"
    assert json.loads(gristmill("store", "show", "tiny/dedup@1", at, "--json").stdout)["key"] == old.split("/")[1]
    shown = gristmill("store", "show", "tiny/dedup@2", at).stdout
    assert shown.startswith(new)
    assert "threshold" in shown, "another than the default"
    assert "threshold" not in gristmill("store", "show", "tiny/dedup@1", at).stdout, "the default"
    assert "dedup" in gristmill("store", "lineage", "tiny/dedup", at).stdout
    told = gristmill("store", "diff", "tiny/dedup@1", "tiny/dedup@2", at).stdout
    assert "threshold" in told
    assert "0.8" in told
    assert old in gristmill("store", "gc", at).stdout.replace("\n", "")
    assert len(list(store.locations())) == 2, "a dry run deletes nothing"
    gristmill("store", "gc", "--delete", at)
    assert len(list(store.locations())) == 1


def test_ls_lists_what_is_asked_for_the_last_made_first(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    for stage, threshold in (("dedup", 0.8), ("dedup", 0.7), ("filter", 0.1), ("pretrain", 0.1)):
        publish(store, stage, {"a": f"{stage}{threshold}".encode()}, threshold=threshold)
    at = f"--store={store.root}"

    def listed(*arguments: str) -> list[str]:
        return [row["ref"] for row in json.loads(gristmill("store", "ls", at, "--json", *arguments).stdout)]

    assert listed() == ["tiny/pretrain@1", "tiny/filter@1", "tiny/dedup@2"]
    assert listed("--versions", "--stage", "dedup") == ["tiny/dedup@2", "tiny/dedup@1"]
    assert listed("*/f*") == ["tiny/filter@1"]
    assert listed("pre") == ["tiny/pretrain@1"]
    assert listed("--profile", "smoke") == []
    assert listed("--limit", "1") == ["tiny/pretrain@1"]
    assert "2 more: --all" in gristmill("store", "ls", at, "--limit", "1").stdout
    assert "No ref matches." in gristmill("store", "ls", at, "nothing").stdout


def test_lineage_names_a_few_sources_and_all_that_are_asked_for() -> None:
    sources = {f"source:file{number}": "0" * 64 for number in range(8)}
    assert _sources(sources, every=False) == ["8 sources: file0, file1, file2, file3, file4, … (--sources names all)"]
    assert len(_sources(sources, every=True)) == 8
    assert len(_sources({"source:a": "1", "documents": "2"}, every=False)) == 1


def test_gc_tells_curves_of_a_run_that_ended_from_unfinished_work(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    publish(store, "pretrain", {"a": b"one"}, steps=1)
    stage, key = publish(store, "pretrain", {"a": b"two"}, steps=2).split("/")
    work = store.workspace("sft", "f" * 32)
    for folder in (store.aside(stage, key), store.aside(stage, "e" * 32), work):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "speed.jsonl").write_text("{}")
    told = [" ".join(line.split()) for line in gristmill("store", "gc", f"--store={store.root}").stdout.splitlines()]
    assert f"2 B insight/pretrain/{'e' * 32} (curves and traces of a run whose artifact is gone or goes too)" in told
    assert f"2 B sft-{'f' * 32} (unfinished work: a resume would need it)" in told
    assert not [line for line in told if f"insight/pretrain/{key}" in line]


def test_explain_tells_a_documents_whole_story(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    document = Document.new("A text about a river.", "mine", file="a.txt")
    write_documents(tmp_path / "d.parquet", [document])
    write_ledger(tmp_path / "l.parquet", [Verdict(document.id, "mine", "removed", "quality.min_words", 5.0, 20.0, "")])
    publish(store, "download", {f"documents/{shard_name(0)}": (tmp_path / "d.parquet").read_bytes()})
    publish(store, "filter", {f"ledger/{shard_name(0)}": (tmp_path / "l.parquet").read_bytes()})
    done = gristmill("explain", document.id[:8], "tiny", f"--set=runtime.store={store.root}")
    assert "A text about a river." in done.stdout
    assert "removed: quality.min_words 5 (threshold 20)" in done.stdout


def test_a_document_does_not_steer_the_terminal_of_who_reads_it(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    document = Document.new("A river\x1b]0;title\x07 and\x9b2J a \u202efox.", "mine")
    write_documents(tmp_path / "d.parquet", [document])
    publish(store, "download", {f"documents/{shard_name(0)}": (tmp_path / "d.parquet").read_bytes()})
    told = gristmill("explain", document.id[:8], "tiny", f"--set=runtime.store={store.root}").stdout
    assert "A river\N{REPLACEMENT CHARACTER}]0;title" in told
    assert not set(told) & set("\x1b\x07\x9b\u202e")


def test_explain_tells_the_story_of_a_pair_too(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    pair = {"id": "abcdef12", "source": "mine", "messages": [{"role": "user", "content": "Who is jane.doe@mail.com?"}]}
    write_json_lines(tmp_path / "pairs.jsonl", [pair])
    write_ledger(tmp_path / "l.parquet", [Verdict("abcdef12", "mine", "removed", "pii.email_address", 1.0, 0.4, "")])
    publish(store, "download", {"instructions/pairs.jsonl": (tmp_path / "pairs.jsonl").read_bytes()})
    publish(store, "pairs", {"ledger/instructions-00000.parquet": (tmp_path / "l.parquet").read_bytes()})
    told = gristmill("explain", "abcd", "tiny", f"--set=runtime.store={store.root}").stdout
    assert "abcdef12 from mine" in told
    assert "Who is jane.doe@mail.com?" in told
    assert "pairs      removed: pii.email_address 1 (threshold 0.4)" in told


def test_explain_counts_the_copies_of_a_text(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    document = Document.new("A text about a river.", "mine")
    copy = Verdict(document.id, "mine", "removed", "exact_duplicate", None, None, f"duplicate_of {document.id}")
    near = Verdict(document.id, "mine", "removed", "near_duplicate", 0.9, 0.8, "duplicate_of abc")
    write_documents(tmp_path / "d.parquet", [document])
    write_ledger(tmp_path / "copies.parquet", [copy, copy])
    write_ledger(tmp_path / "near.parquet", [copy, copy, near])
    kept = {f"documents/{shard_name(0)}": (tmp_path / "d.parquet").read_bytes()}
    command = ("explain", document.id[:8], "tiny", f"--set=runtime.store={store.root}")
    publish(store, "dedup", {**kept, f"ledger/{shard_name(0)}": (tmp_path / "copies.parquet").read_bytes()})
    told = gristmill(*command).stdout
    assert "3 copies, one kept" in told
    assert "duplicate" not in told
    publish(store, "download", kept)
    publish(store, "dedup", {f"ledger/{shard_name(0)}": (tmp_path / "near.parquet").read_bytes()})
    told = gristmill(*command).stdout
    assert "2 of 3 copies removed as copies of the other" in told
    assert "removed: near_duplicate 0.9 (threshold 0.8), duplicate_of abc" in told


def test_a_rule_is_listed_apart_from_others_that_begin_with_its_name(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    reasons = ["language"] * 2 + ["language.min_score"] * 3
    write_ledger(tmp_path / "l.parquet", [Verdict("ab" * 16, "web", "removed", reason, 0.5) for reason in reasons])
    write_documents(tmp_path / "r.parquet", [])
    parts = {"ledger": "l.parquet", "removed": "r.parquet"}
    files = {f"{part}/{shard_name(0)}": (tmp_path / name).read_bytes() for part, name in parts.items()}
    publish(store, "filter", files)
    at = f"--set=runtime.store={store.root}"
    listed = gristmill("explain", "--removed-by", "language", "--stage=filter", at).stdout
    assert "filter removed 2 by language" in listed
    assert "Not counted here: language.min_score (3)" in listed
    assert "removed 3 by" in gristmill("explain", "--removed-by", "language.min_score", "--stage=filter", at).stdout


def test_explain_refuses_an_ambiguous_beginning_and_lists_the_ids(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    documents = [Document("abcd" + str(number) * 28, f"Text {number}\nof a river.", "mine") for number in range(3)]
    write_documents(tmp_path / "d.parquet", documents[:2])
    write_ledger(
        tmp_path / "l.parquet", [Verdict(documents[2].id, "web", "removed", "gopher.min_words", 5.0, 20.0)] * 30
    )
    publish(store, "download", {f"documents/{shard_name(0)}": (tmp_path / "d.parquet").read_bytes()})
    removed = Document(documents[2].id, documents[2].text, "web", '{"title": "On rivers"}')
    write_documents(tmp_path / "r.parquet", [removed])
    parts = {"ledger": "l.parquet", "removed": "r.parquet"}
    files = {f"{part}/{shard_name(0)}": (tmp_path / name).read_bytes() for part, name in parts.items()}
    publish(store, "filter", files)
    at = f"--set=runtime.store={store.root}"
    told = gristmill("explain", "abcd", "tiny", at)
    assert told.returncode == 1
    assert "3 ids of tiny start with abcd" in told.stderr
    assert f"{documents[1].id}  mine  Text 1 of a river." in told.stderr
    assert f"{documents[2].id}  web" in told.stderr
    assert "Text 1" in gristmill("explain", "abcd1", "tiny", at).stdout
    assert "30 copies removed: gopher.min_words 5 (threshold 20)" in gristmill("explain", "abcd2", "tiny", at).stdout
    listed = gristmill("explain", "tiny", "--removed-by", "gopher", "--limit", "2", at).stdout
    assert "filter removed 30 by gopher, of which 2 are shown" in listed
    assert listed.count(documents[2].id) == 2
    assert "web: gopher.min_words 5 (threshold 20)\n  On rivers | Text 2 of a river." in listed
    listed = gristmill("explain", "--removed-by", "gopher.min_words", "--stage=filter", at).stdout
    assert listed.count("threshold 20") == 20
    wrong = gristmill("explain", "--removed-by", "toxicity", at)
    assert (wrong.returncode, "gopher.min_words (30)" in wrong.stderr) == (1, True)
    assert "No ref names an artifact of dedup: run `gristmill run tiny --to dedup --store " in wrong.stderr
    nothing = gristmill("explain", "--removed-by", "toxicity", "--stage=filter", at)
    assert (nothing.returncode, nothing.stdout) == (
        0,
        "toxicity removed nothing in tiny. Rules that did: gopher.min_words (30).\n",
    )
    wrong = gristmill("explain", "--removed-by", "toxicty", "--stage=filter", at)
    assert (wrong.returncode, "toxicty is not a rule of tiny." in wrong.stderr) == (1, True)
    assert "Did you mean toxicity? Rules that did: gopher.min_words (30)." in wrong.stderr
    (tmp_path / "store" / "refs" / "tiny" / "filter.json").unlink()
    wrong = gristmill("explain", "--removed-by", "gopher", "--stage=filter", at)
    assert "gopher is not a rule of tiny." in wrong.stderr
    assert "No ref names an artifact of filter: run `gristmill run tiny --to filter --store " in wrong.stderr


def test_explain_names_the_origin_of_each_copy(tmp_path: Path) -> None:
    text = "A text about a river, of some length, which stands in three places."
    documents = [Document.new(text, "web", url="https://a"), Document.new(text, "books", page=1)]
    documents += [Document.new(f"{text} ", "web", url="https://b")]
    write_documents(tmp_path / "in" / shard_name(0), documents)
    out = Output.at(tmp_path, stage="dedup", runtime=runtime_of(workers=1))
    config = DedupConfig(source_order=["books"], max_removed_share_per_source=1.0)
    dedup.function(config, Artifact.at(tmp_path / "in"), out)
    store = Store(str(tmp_path / "store"))
    at = f"--set=runtime.store={store.root}"
    publish(store, "download", {f"documents/{shard_name(0)}": (tmp_path / "in" / shard_name(0)).read_bytes()})
    publish(store, "dedup", {str(p.relative_to(out.path)): p.read_bytes() for p in out.path.glob("*/*.parquet")})
    told = gristmill("explain", documents[0].id[:12].upper(), "tiny", at).stdout
    assert told.startswith(f'{documents[0].id} from books {{"page": 1}}'), "the copy that was kept"
    assert "2 copies, one kept (1 from books, 1 from web)" in told
    assert "stands for 2 by exact_duplicate:" in told
    assert all(one in told for one in ("https://a", "https://b", documents[2].id))
    assert f"removed: exact_duplicate 1 (threshold 1), duplicate_of {documents[0].id}" in " ".join(
        gristmill("explain", documents[2].id[:12], "tiny", at).stdout.split()
    )


def test_chat_advises_a_release_that_is_there(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    publish(store, "pretrain", {"model/config.json": b"{}"})
    command = ("chat", "tiny/pretrain", f"--store={store.root}")
    told = gristmill(*command).stderr
    assert "tiny/pretrain isn't a release but an artifact of pretrain" in told
    assert f"`gristmill run PROFILE --store {store.root}`" in told
    assert "tiny/export" in gristmill("chat", "tiny", command[2]).stderr, "a profile is meant by its release"
    publish(store, "export", {"gguf/model.gguf": b""})
    assert "Name a release: tiny/export." in gristmill(*command).stderr


COMMANDS = {
    "Free space (`gristmill store gc`) first.": "Free space (`gristmill store gc --store 'my s'`) first.",
    "`gristmill run PROFILE`; `gristmill ui`": "`gristmill run o.yaml --store 'my s'`; `gristmill ui`",
    "`gristmill run tiny --store other`": "`gristmill run tiny --store other`",
    "See `gristmill profile schema`, or `gristmill`.": "See `gristmill profile schema`, or `gristmill`.",
}


@pytest.mark.parametrize("remedy", COMMANDS)
@pytest.mark.parametrize(
    "given", [["--store", "my s"], ["--to", "dpo", "--store=my s"], ["--set", "runtime.store=my s"]], ids=str
)
def test_commands_of_a_remedy_are_for_the_store_and_the_profile_at_hand(remedy: str, given: list[str]) -> None:
    assert as_given(remedy, ["run", "o.yaml", *given]) == COMMANDS[remedy]
    assert as_given(remedy, ["plan", "PROFILE"]) == remedy


def test_damage_in_a_matrix_is_mended_by_what_verify_says() -> None:
    assert as_given(make_again("pretrain"), ["run", "tiny"]).startswith("Rebuild it: `gristmill run tiny --refresh pre")
    for command in OF_MANY:
        said = as_given(make_again("pretrain"), [command, "tiny", "--store", "here"])
        assert said == "`gristmill store verify --store here` says how to mend it."


def test_every_command_takes_a_store_but_those_that_are_known_to_need_none() -> None:
    cli._add_groups(cli.GROUPS)

    def storeless(command: Any, name: str) -> Iterator[str]:
        for word, each in getattr(command, "commands", {}).items():
            yield from storeless(each, f"{name} {word}".strip())
        if not getattr(command, "commands", {}) and not any(each.name == "store" for each in command.params):
            yield name

    found = list(storeless(typer.main.get_command(cli.app), ""))
    assert found
    assert all(name.startswith(STORELESS) for name in found)
    assert all(any(name.startswith(known) for name in found) for known in STORELESS)


def test_the_version_is_that_of_the_package() -> None:
    assert gristmill("--version").stdout == f"gristmill {version('gristmill')}\n"


def test_help_teaches_and_the_schema_is_json() -> None:
    text = gristmill("--help").stdout
    for command in ("run", "plan", "why", "stage", "store", "explain", "chat", "doctor", "ui", "profile"):
        assert command in text
    of_run = gristmill("run", "--help").stdout
    assert all(name in of_run for name in (*names(), *STAGE_NAMES))
    schema = json.loads(gristmill("profile", "schema").stdout)
    assert "pretrain" in schema["properties"]


def test_a_folder_is_checked_before_it_is_adopted_and_a_hit_says_from_where(tmp_path: Path) -> None:
    store, mine = tmp_path / "around" / "store", tmp_path / "mine"
    write_documents(mine / "documents" / shard_name(0), [Document.new("A text about a river.", "mine")])
    for part in ("instructions", "preferences", "benchmarks"):
        write_json_lines(mine / part / "rows.jsonl", [])
    at = ("smoke", f"--store={store}")
    assert (
        "can't be the artifact of download" in gristmill("store", "adopt", "download", str(ROOT / "docs"), *at).stderr
    )
    assert "evaluate can't check a folder" in gristmill("store", "adopt", "evaluate", str(mine), *at).stderr
    assert "nowhere is not a folder" in gristmill("store", "adopt", "tokenizer", str(tmp_path / "nowhere"), *at).stderr
    taken = gristmill("store", "adopt", "download", str(mine), *at)
    assert taken.returncode == 0, taken.stderr
    for folder, named in ((store, "is the store"), (store / "refs", "is in the store"), (store.parent, "contains")):
        assert named in gristmill("store", "adopt", "download", str(folder), *at).stderr
    assert "adopted from mine" in gristmill("plan", *at).stdout
    assert "adopted from mine" in gristmill("why", "download", *at).stdout


def test_the_table_of_a_run_says_what_was_quarantined_of_pairs_too() -> None:
    documents = {"in": 90, "kept": 90, "removed": {}, "quarantined": 0}
    counts = {"documents": documents, "instructions_quarantined": 31, "preferences": 9}
    payload = KeyPayload(stage="download", version=1, config={}, inputs={})
    made = Manifest(key=payload.key(), payload=payload, digest="0" * 64, files={}, counts=counts, created="")
    assert result_of(made) == "90 documents in, 90 kept, 31 pairs quarantined"


def test_only_settings_that_differ_from_the_defaults_are_shown() -> None:
    config = PretrainConfig.model_validate({"model": None, "steps": 48, "global_batch": 4}).model_dump(mode="json")
    payload = KeyPayload(stage="pretrain", version=1, config=config, inputs={})
    made = Manifest(key=payload.key(), payload=payload, digest="0" * 64, files={}, counts={}, created="")
    assert [*chosen(made)] == [("global_batch", "4"), ("steps", "48")]


@pytest.mark.parametrize("module", ["typer", "storage.files.disk"])
def test_ctrl_c_while_the_command_imports_what_it_needs_ends_with_a_sentence(module: str) -> None:
    script = f"""
import builtins, os, signal, sys
imported = builtins.__import__
def interrupted(name, among=None, *rest):
    if name == {module!r} and among and among.get("__name__") == "flows.cli":
        os.kill(os.getpid(), signal.SIGINT)
    return imported(name, among, *rest)
signal.signal(signal.SIGINT, signal.default_int_handler)  # as at a terminal
builtins.__import__ = interrupted
sys.argv = ["/somewhere/gristmill", "--version"]
from flows import cli
from flows.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "Interrupted before anything began.\n")
