"""The stage contract: what a key holds, when a stage runs, and what is never published."""

from __future__ import annotations

import errno
import json
import math
import multiprocessing
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from storage import refs
from storage.artifact import Artifact
from storage.errors import AccountingError, DamagedArtifact, EmptyOutput, SourceError, StoreError
from storage.maintain import adopt, find_garbage
from storage.store import Store
from tasks.stage import stage
from tasks.stage.config import StageConfig
from tasks.stage.decorator import STAGES
from tasks.stage.display.pages import making_of
from tasks.stage.history import ATTEMPTS, NEVER_MADE, attempt, explain_miss, nearest
from tasks.stage.output import Output
from tasks.stage.protocol import AnyStage, Input
from tasks.stage.runtime import Runtime
from tasks.stage.session import Session, open_session
from tests.file_systems import read_only, small
from tests.runtimes import runtime_of


class SourceConfig(StageConfig):
    text: str = "text"


class CopyConfig(StageConfig):
    times: int = 1


RUNS: list[str] = []
FOUND: list[str] = []
OUTSIDE = {"lists": "a" * 64}
CHANGED: dict[str, str] = {}  # the digest of an outside source that changes while it is read


def _outside(config: SourceConfig) -> dict[str, str]:
    return {"file": CHANGED.get(config.text, config.text.upper())}


@stage(version=1, name="demo-source", sources=_outside)
def source(config: SourceConfig, out: Output) -> None:
    RUNS.append("source")
    if config.text in CHANGED:
        CHANGED[config.text] = "after"
    for part in ("documents", "pairs"):
        (out.path / part).mkdir()
        (out.path / part / "a.txt").write_text(config.text if part == "documents" else "pairs")


@stage(version=1, name="demo-copy")
def copy(config: CopyConfig, documents: Artifact, out: Output) -> None:
    RUNS.append("copy")
    (out.path / "a.txt").write_text((documents.path / "a.txt").read_text() * config.times)


@stage(version=1, name="demo-measured")
def measured(config: CopyConfig, documents: Artifact, out: Output) -> None:
    RUNS.append("measured")
    signals = out.obtain(copy, CopyConfig(times=3), documents)
    (out.path / "a.txt").write_text(f"{config.times} {(signals.path / 'a.txt').read_text()}")


@stage(version=1, name="demo-grown", sources=lambda config: dict(OUTSIDE))
def grown(config: CopyConfig, documents: Artifact, model: Artifact, out: Output) -> None:
    FOUND[:] = [artifact.location for artifact in out.earlier(lambda name: name == "documents")]
    (out.path / "a.txt").write_text((documents.path / "a.txt").read_text())


@stage(version=1, name="demo-fails-once")
def fails_once(config: CopyConfig, out: Output) -> None:
    if (out.scratch.parents[2] / "fail").exists():
        raise RuntimeError("as it was told")
    (out.path / "a.txt").write_text("done")


@stage(version=1, name="demo-chain")
def chain(config: CopyConfig, models: Mapping[str, Artifact], extra: Artifact | None, out: Output) -> None:
    names = [f"{name} {(model.path / 'a.txt').read_text()}" for name, model in models.items()]
    (out.path / "a.txt").write_text("; ".join([*names, "extra" if extra else "nothing more"]))


@stage(version=1, name="demo-broken")
def broken(config: SourceConfig, out: Output) -> None:
    if config.text == "empty":
        return
    (out.path / "a.txt").write_text("half")
    if config.text == "lost":
        out.account(documents_in=3, kept=1, removed={"short": 1})
    if config.text == "none":
        out.account(documents_in=1, kept=0, removed={"short": 1})
    if config.text == "nan":
        out.count(loss=float("nan"))
    if config.text == "full":
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    RUNS.clear()
    opened = Session(Store(str(tmp_path / "store")), runtime_of(workers=1), "test")
    with open_session(opened):
        yield opened


def test_a_run_tells_of_what_it_made_and_not_of_what_another_of_its_profile_has_made_since(session: Session) -> None:
    mine, _ = source.materialize(SourceConfig(), ())
    with open_session(replace(session, steps={}, reasons={})) as other:
        theirs, _ = source.materialize(SourceConfig(text="another"), ())
        assert {name: step.artifact for name, step in other.steps.items()} == {"demo-source": theirs}
    assert {name: step.artifact for name, step in session.steps.items()} == {"demo-source": mine}
    assert refs.resolve(session.store, "test/demo-source") == theirs.location
    assert session.steps["demo-source"].why == NEVER_MADE
    source.materialize(SourceConfig(), ())
    assert session.steps["demo-source"].cached
    assert not session.steps["demo-source"].why


def test_a_stage_runs_once_and_comes_from_the_store_after(session: Session) -> None:
    first, cached = source.materialize(SourceConfig(), ())
    assert not cached
    second, cached = source.materialize(SourceConfig(), ())
    assert cached
    assert second.location == first.location
    assert RUNS == ["source"]
    assert refs.resolve(session.store, "test/demo-source") == first.location


def test_what_a_later_stage_would_refuse_is_asked_before_this_one_is_made_and_only_then(session: Session) -> None:
    asked: list[list[str]] = []

    def refuse(later: Mapping[str, None]) -> None:
        asked.append(list(later))
        raise EmptyOutput("Nothing would be left.", "Give more.")

    later = {"demo-copy": None, "demo-last": None}
    source.before(later, refuse)
    with pytest.raises(EmptyOutput, match="Nothing would be left"):
        source.materialize(SourceConfig(), ())
    assert RUNS == []
    source.before(later, lambda _: None)
    source.materialize(SourceConfig(), ())
    source.before(later, refuse)
    assert source.materialize(SourceConfig(), ())[1], "what is in the store costs nothing"
    with open_session(replace(session, until="demo-source", checks={})):
        source.before(later, refuse)
        source.materialize(SourceConfig(text="the end of the run"), ())
    assert asked == [list(later)]
    with open_session(replace(session, until="demo-copy", checks={})):
        source.before(later, refuse)
        with pytest.raises(EmptyOutput):
            source.materialize(SourceConfig(text="on to the copy"), ())
    assert asked[1:] == [["demo-copy"]], "a stage that the run does not reach refuses nothing"


def test_refresh_makes_it_anew(session: Session) -> None:
    source.materialize(SourceConfig(), ())
    _, cached = source.materialize(SourceConfig(), (), refresh=True)
    assert not cached
    assert RUNS == ["source", "source"]


def test_a_damaged_artifact_is_not_used_and_the_remedy_heals_it(session: Session) -> None:
    first, _ = source.materialize(SourceConfig(), ())
    made, _ = copy.materialize(CopyConfig(), (first.part("documents"),))
    (first.path / "documents" / "a.txt").write_text("TEXT")
    with pytest.raises(DamagedArtifact) as caught:
        source.materialize(SourceConfig(), ())
    assert "--refresh demo-source`." in caught.value.remedy
    with open_session(replace(session, refresh=frozenset({"demo-source"}))):
        again, cached = source.materialize(SourceConfig(), ())
    assert not cached
    assert again.digest == first.digest
    found, cached = source.materialize(SourceConfig(), ())
    assert cached
    assert (found.path / "documents" / "a.txt").read_text() == "text"
    assert copy.materialize(CopyConfig(), (found.part("documents"),)) == (made, True)


def test_a_run_holds_what_it_takes_until_it_ends(session: Session) -> None:
    first, _ = source.materialize(SourceConfig(), ())
    source.materialize(SourceConfig(text="other"), ())  # moves the ref, as a second run of the profile would
    assert find_garbage(session.store, keep_last=1).artifacts == {}
    with open_session(Session(session.store, session.runtime, "test")):
        pass
    assert find_garbage(session.store, keep_last=1).artifacts == {}, "another session's end frees its own leases only"
    assert first.path.is_dir()


def test_config_inputs_and_outside_sources_bear_identity_and_runtime_does_not(session: Session) -> None:
    raw, _ = source.materialize(SourceConfig(), ())
    base = copy.payload(CopyConfig(), (raw.part("documents"),))
    other, _ = source.materialize(SourceConfig(text="other"), ())
    assert copy.payload(CopyConfig(times=2), (raw.part("documents"),)).key() != base.key()
    assert copy.payload(CopyConfig(), (other.part("documents"),)).key() != base.key()
    assert source.payload(SourceConfig(), ()).inputs == {"source:file": "TEXT"}
    elsewhere = Session(session.store, runtime_of(workers=8, device="cpu", threads=3), "another")
    with open_session(elsewhere):
        _, cached = copy.materialize(CopyConfig(), (raw.part("documents"),))
        assert not cached
    with open_session(session):
        _, cached = copy.materialize(CopyConfig(), (raw.part("documents"),))
        assert cached


def test_a_source_that_changes_while_it_is_read_is_not_published_under_its_old_digest(session: Session) -> None:
    CHANGED["moving"] = "before"
    with pytest.raises(SourceError, match="file changed while demo-source was made"):
        source.materialize(SourceConfig(text="moving"), ())
    assert list(session.store.locations()) == []
    assert not list((session.store.local / "work").glob("*"))


def test_only_the_part_that_is_read_bears_identity(session: Session) -> None:
    raw, _ = source.materialize(SourceConfig(), ())
    other, _ = source.materialize(SourceConfig(text="other"), ())
    assert raw.part("pairs").digest == other.part("pairs").digest
    assert raw.part("documents").digest != other.part("documents").digest


def test_a_miss_is_explained_by_the_fields_that_differ(session: Session) -> None:
    raw, _ = source.materialize(SourceConfig(), ())
    copy.materialize(CopyConfig(times=1), (raw.part("documents"),))
    payload = copy.payload(CopyConfig(times=2), (raw.part("documents"),))
    assert explain_miss(session.store, payload) == "times: 1 → 2"
    assert explain_miss(session.store, payload, profile="mine") == "first run of mine"
    read = payload.model_copy(update={"inputs": {**payload.inputs, "documents": "0" * 64, "source:a.jsonl": "1" * 64}})
    told = explain_miss(session.store, read)
    assert "other documents" in told
    assert "a.jsonl is new" in told
    assert "0000" not in told


def test_an_intermediate_artifact_is_made_once(session: Session) -> None:
    raw, _ = source.materialize(SourceConfig(), ())
    documents = raw.part("documents")
    first, _ = measured.materialize(CopyConfig(times=1), (documents,))
    measured.materialize(CopyConfig(times=2), (documents,))
    assert RUNS.count("copy") == 1
    assert first.manifest is not None
    assert set(first.manifest.uses) == {"demo-copy"}


def test_models_by_name_bear_identity_each_under_its_name(session: Session) -> None:
    one, _ = source.materialize(SourceConfig(text="one"), ())
    two, _ = source.materialize(SourceConfig(text="two"), ())
    both = {"base": one.part("documents"), "tuned": two.part("documents")}
    made, _ = chain.materialize(CopyConfig(), (both, None))
    assert made.manifest is not None
    assert made.manifest.payload.inputs == {"models.base": both["base"].digest, "models.tuned": both["tuned"].digest}
    assert made.manifest.origins["models.tuned"] == both["tuned"].origin
    assert (made.path / "a.txt").read_text() == "base one; tuned two; nothing more"
    _, cached = chain.materialize(CopyConfig(), (dict(reversed(both.items())), None))
    assert cached, "the order in which they are given is none of the result's business"
    again, _ = chain.materialize(CopyConfig(), (dict(reversed(both.items())), None), refresh=True)
    assert again.digest == made.digest, "nor of the order in which it takes them"
    swapped = {"base": both["tuned"], "tuned": both["base"]}
    assert chain.payload(CopyConfig(), (swapped, None)).key() != made.manifest.key
    assert chain.payload(CopyConfig(), (both, one)).key() != made.manifest.key


def test_a_section_that_is_null_is_no_stage(session: Session) -> None:
    made, _ = source.materialize(SourceConfig(), ())
    assert copy(None, made.part("documents")) == made
    assert RUNS == ["source"]


def test_of_two_artifacts_of_one_second_the_later_is_nearest(session: Session) -> None:
    for times in (2, 3):
        copied, _ = copy.materialize(
            CopyConfig(times=times), (source.materialize(SourceConfig(), ())[0].part("documents"),)
        )
    assert copied.manifest is not None
    asked = copied.manifest.payload.model_copy(update={"config": {"times": 4}})
    for _ in range(3):
        found = nearest(session.store, asked)
        assert found is not None
        assert found.payload.config == {"times": 3}
    stamps = [made.created for made in map(session.store.manifest, session.store.locations()) if made]
    assert len(set(stamps)) == len(stamps), "no two are alike, though they were made within a second"


def test_a_stage_runs_on_a_plain_folder_without_store_or_prefect(tmp_path: Path) -> None:
    made = Output.at(tmp_path / "source")
    source.function(SourceConfig(), made)
    out = Output.at(tmp_path / "measured")
    measured.function(CopyConfig(), Artifact.at(made.path / "documents"), out)
    assert (out.path / "a.txt").read_text() == "1 texttexttext"


def test_what_was_made_alike_of_other_inputs_is_found_and_nothing_else(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = [source.materialize(SourceConfig(text=text), ())[0].part("documents") for text in "abcdef"]
    model, other_model = inputs[4:]

    def found(documents: Artifact, with_model: Artifact = model, times: int = 1, refresh: bool = False) -> list[str]:
        made, cached = grown.materialize(CopyConfig(times=times), (documents, with_model), refresh=refresh)
        assert refresh or not cached
        locations.append(made.location)
        return list(FOUND)

    locations: list[str] = []
    assert found(inputs[0]) == []
    assert found(inputs[1]) == locations[:1]
    assert found(inputs[0], refresh=True) == []
    assert found(inputs[0], with_model=other_model) == []
    assert found(inputs[0], times=2) == []
    with monkeypatch.context() as changed:
        changed.setattr(grown, "version", 2)
        assert found(inputs[2]) == []
    with monkeypatch.context() as changed:
        changed.setattr(type(grown), "source", property(lambda self: "other"))
        assert found(inputs[2]) == []
    with monkeypatch.context() as changed:
        changed.setitem(OUTSIDE, "lists", "b" * 64)
        session.fingerprints.clear()
        assert found(inputs[2]) == [], "what lies outside the store is another"
    session.fingerprints.clear()
    with monkeypatch.context() as changed:
        changed.setattr("tasks.stage.environment._version", lambda library: "1000.0")
        assert found(inputs[4]) == [], "another version of a library"
    assert found(inputs[3]) == [locations[1], locations[0]], "the newest first"
    out = Output.at(session.store.local / "plain")
    grown.function(CopyConfig(), inputs[0], model, out)
    assert FOUND == []


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("empty", EmptyOutput, "wrote no file"),
        ("lost", AccountingError, "read 3 documents and accounts for 2"),
        ("none", EmptyOutput, "kept none of 1 documents"),
        ("nan", EmptyOutput, "counted loss = nan"),
        ("full", StoreError, "disk .* is full"),
    ],
)
def test_what_breaks_a_law_is_never_published(
    session: Session, text: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        broken.materialize(SourceConfig(text=text), ())
    assert list(session.store.locations("demo-broken")) == []


def test_an_account_is_of_what_was_quarantined_too_and_no_count_is_without_end(tmp_path: Path) -> None:
    out = Output.at(tmp_path)
    (out.path / "a.txt").write_text("text")
    out.account(documents_in=6, kept=3, removed={"short": 2}, quarantined=1)
    assert out.counts["documents"] == {"in": 6, "kept": 3, "removed": {"short": 2}, "quarantined": 1}
    with pytest.raises(AccountingError, match="read 5 documents and accounts for 6"):
        out.account(documents_in=5, kept=3, removed={"short": 2}, quarantined=1)
    out.check()
    out.count(losses=[1.0, math.inf])
    with pytest.raises(EmptyOutput, match="counted losses = inf"):
        out.check()


def test_a_disk_that_is_full_from_the_first_byte_is_named(tmp_path: Path) -> None:
    full = pytest.raises(StoreError, match=r"full/store is full\. demo-source stopped")
    with small(tmp_path / "full", size="4k", files=1) as folder:
        session = Session(Store(str(folder / "store")), Runtime(), "test")
        with full, open_session(session):
            source.materialize(SourceConfig(), ())


def test_a_store_that_can_only_be_read_serves_what_it_has(session: Session) -> None:
    made, _ = source.materialize(SourceConfig(), ())
    with read_only(session.store.local), open_session(replace(session, profile="another")) as reading:
        found, cached = source.materialize(SourceConfig(), ())
        assert (found.location, cached) == (made.location, True)
        with pytest.raises(StoreError, match=r"locks/demo-copy.* can't be used: (Read-only|Permission denied)"):
            copy.materialize(CopyConfig(), (found.part("documents"),))
        assert refs.history(reading.store, "another/demo-source") == []


def test_a_config_is_frozen_and_refuses_unknown_keys_and_nan() -> None:
    with pytest.raises(ValidationError):
        CopyConfig(tims=2)  # type: ignore[call-arg]  # the mistake that is tested
    with pytest.raises(ValidationError):
        CopyConfig().times = 2  # type: ignore[misc]  # the mistake that is tested


def _make_slow(url: str, log: str) -> None:
    @stage(version=1, name="demo-once")
    def once(config: SourceConfig, out: Output) -> None:
        with Path(log).open("a") as file:
            file.write("ran\n")
        time.sleep(0.7)
        (out.path / "a.txt").write_text("made")

    with open_session(Session(Store(url), Runtime(), "test")):
        once.materialize(SourceConfig(), ())


def test_of_two_runs_at_once_one_works_and_the_other_takes_it(tmp_path: Path) -> None:
    url, log = str(tmp_path / "store"), str(tmp_path / "log")
    Store(url)
    context = multiprocessing.get_context("spawn")
    runs = [context.Process(target=_make_slow, args=(url, log)) for _ in range(3)]
    for run in runs:
        run.start()
    for run in runs:
        run.join(60)
    assert [run.exitcode for run in runs] == [0, 0, 0]
    assert Path(log).read_text() == "ran\n"


def test_work_that_a_killed_run_has_left_of_a_finished_stage_goes_with_the_next_hit(session: Session) -> None:
    made, _ = source.materialize(SourceConfig(), ())
    assert made.manifest is not None
    left = session.store.workspace("demo-source", made.manifest.key)
    (left / "scratch").mkdir()
    with session.store.lock("demo-source", made.manifest.key):
        source.materialize(SourceConfig(), ())
        assert left.exists(), "another process works there"
    source.materialize(SourceConfig(), ())
    assert not left.exists()


def test_a_hit_made_by_other_source_code_says_so(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    monkeypatch.setattr(session.observer, "noted", lambda name, message: notes.append(message))
    source.materialize(SourceConfig(), ())
    monkeypatch.setattr(type(source), "source", property(lambda self: "other"))
    source.materialize(SourceConfig(), ())
    assert notes == ["made by other source code; raise its version if results changed"]


def test_a_hit_that_was_adopted_says_nothing_of_source_code(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    monkeypatch.setattr(session.observer, "noted", lambda name, message: notes.append(message))
    made, _ = source.materialize(SourceConfig(), ())
    assert made.manifest is not None
    session.store.remove(made.location)
    folder = Path(str(session.store.local)).parent / "mine"
    folder.mkdir()
    (folder / "a.txt").write_text("made elsewhere")
    adopt(session.store, folder, made.manifest.payload, {}, "adopted from mine")
    found, cached = source.materialize(SourceConfig(), ())
    assert cached
    assert found.manifest is not None
    assert found.manifest.adopted == "adopted from mine"
    assert notes == []


@pytest.fixture(autouse=True, scope="module")
def _forget_demo_stages() -> Iterator[None]:
    yield
    for name in [name for name in STAGES if name.startswith("demo-")]:
        del STAGES[name]


def test_what_is_made_elsewhere_is_asked_for_on_a_miss_alone_and_taken_from_the_store(tmp_path: Path) -> None:
    """`elsewhere` has a stage made as another machine does: in a session of its own on the same store."""
    asked: list[tuple[str, bool]] = []

    def maker(stage: AnyStage, key: str, config: StageConfig, inputs: Sequence[Input], refresh: bool) -> str:
        asked.append((stage.name, refresh))
        with open_session(Session(Store(str(tmp_path)), Runtime())):
            artifact, _ = stage.materialize(config, inputs, refresh=refresh)
        assert artifact.manifest is not None
        assert artifact.manifest.key == key
        return artifact.location

    far = Session(Store(str(tmp_path)), Runtime(), elsewhere=lambda name: maker if name == "demo-copy" else None)
    refused: list[str] = []
    with open_session(far):
        raw, _ = source.materialize(SourceConfig(), [])
        far.checks["demo-copy"] = lambda: refused.append("checked")
        first, cached = copy.materialize(CopyConfig(), [raw.part("documents")])
        again, hit = copy.materialize(CopyConfig(), [raw.part("documents")])
        copy.materialize(CopyConfig(), [raw.part("documents")], refresh=True)
    assert (cached, hit) == (False, True)
    assert first == again
    assert asked == [("demo-copy", False), ("demo-copy", True)]
    assert refused == ["checked"] * 2, "what later stages would refuse is asked before anything is sent"
    assert far.steps["demo-copy"].artifact == first


def test_the_making_of_what_was_killed_took_all_its_attempts(session: Session) -> None:
    session.store.begin()
    (session.store.local / "fail").touch()
    with pytest.raises(RuntimeError):
        fails_once.materialize(CopyConfig(), ())
    (session.store.local / "fail").unlink()
    (work,) = (session.store.local / "work").glob("demo-fails-once-*")
    began = time.time() - 1000
    (work / ATTEMPTS).write_text(json.dumps({"number": 1, "seconds": 0.0, "first": began, "began": began}))
    (work / "scratch" / "checkpoint").touch()
    for path in (work, *work.rglob("*")):
        os.utime(path, times=(began, began + 60))  # it was killed a minute after it had begun
    made, _ = fails_once.materialize(CopyConfig(), ())
    assert made.manifest is not None
    facts = made.manifest.facts
    assert (facts["attempts"], facts["earlier_seconds"]) == (2, pytest.approx(60, abs=0.01))
    assert 60 <= facts["seconds"] < 1000
    assert making_of(made.manifest).endswith(" in 2 attempts")


def test_a_refresh_begins_to_count_anew_and_what_a_kill_left_of_the_count_is_no_error(tmp_path: Path) -> None:
    told: list[str] = []
    assert attempt(tmp_path, told.append, anew=False) == {}
    assert attempt(tmp_path, told.append, anew=False)["attempts"] == 2
    assert attempt(tmp_path, told.append, anew=True) == {}
    assert not told
    for damaged in (b'{"numb', b"[]", b'{"number": 1}', b"\xff"):
        (tmp_path / ATTEMPTS).write_bytes(damaged)
        assert attempt(tmp_path, told.append, anew=False) == {}
        assert told.pop().endswith("attempts.json can't be read: the time of earlier attempts is not counted")
