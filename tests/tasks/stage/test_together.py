"""Several artifacts made together: each is found, published and lost separately."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from storage.artifact import Artifact
from storage.errors import ConfigError, DamagedArtifact, EmptyOutput
from storage.maintain import find_garbage
from storage.store import Store
from tasks.stage import stage
from tasks.stage.config import StageConfig
from tasks.stage.output import Output
from tasks.stage.session import Session, open_session
from tests.runtimes import runtime_of


class WordConfig(StageConfig):
    word: str = "word"


class WordsConfig(StageConfig):
    words: tuple[str, ...] = ()


TOGETHER: list[list[str]] = []  # the words of each call


def _together(calls: Sequence[tuple[WordConfig, Sequence[Artifact], Output]]) -> Iterator[int]:
    TOGETHER.append([config.word for config, _, _ in calls])
    for number, (config, (text,), out) in enumerate(calls):
        if config.word == "bad":
            raise EmptyOutput("There is nothing.", "Say another word.")
        (out.path / "a.txt").write_text(config.word + (text.path / "a.txt").read_text())
        yield number


@stage(version=1, name="demo-word", part_of="demo-words", together=_together)
def word(config: WordConfig, text: Artifact, out: Output) -> None:
    for _ in _together([(config, [text], out)]):
        pass


@stage(version=1, name="demo-words")
def words(config: WordsConfig, text: Artifact, out: Output) -> None:
    made = out.obtain_all(word, {one: (WordConfig(word=one), (text,)) for one in config.words})
    (out.path / "a.txt").write_text(" ".join((artifact.path / "a.txt").read_text() for artifact in made.values()))


@pytest.fixture
def text(tmp_path: Path) -> Artifact:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("!")
    return Artifact.at(tmp_path / "text")


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    TOGETHER.clear()
    with open_session(Session(Store(str(tmp_path / "store")), runtime_of(workers=1), "test")) as opened:
        yield opened


def said(artifact: Artifact) -> str:
    return (artifact.path / "a.txt").read_text()


def test_only_what_is_missing_is_made(session: Session, text: Artifact) -> None:
    first, _ = words.materialize(WordsConfig(words=("b", "a")), (text,))
    assert said(first) == "b! a!"
    second, _ = words.materialize(WordsConfig(words=("a", "c", "b")), (text,))
    assert said(second) == "a! c! b!"
    assert TOGETHER == [["b", "a"], ["c"]]
    alone, cached = word.materialize(WordConfig(word="c"), (text,))
    assert cached
    assert second.manifest is not None
    assert second.manifest.uses["demo-word.c"] == alone.origin


def test_what_was_made_before_a_failure_stays(session: Session, text: Artifact) -> None:
    with pytest.raises(EmptyOutput):
        words.materialize(WordsConfig(words=("a", "bad", "c")), (text,))
    words.materialize(WordsConfig(words=("a", "c")), (text,))
    assert TOGETHER == [["a", "bad", "c"], ["c"]]


def test_the_same_call_under_two_names_is_made_once(session: Session, text: Artifact) -> None:
    calls = [(WordConfig(word="a"), (text,)), (WordConfig(word="a"), (text,))]
    (one, _), (other, _) = word.materialize_all(calls)
    assert one.location == other.location
    assert TOGETHER == [["a"]]


def test_a_refresh_makes_all_of_them_anew(session: Session, text: Artifact) -> None:
    words.materialize(WordsConfig(words=("a",)), (text,))
    again = Session(session.store, session.runtime, "test", refresh=frozenset({"demo-words", "demo-word"}))
    with open_session(again):
        words.materialize(WordsConfig(words=("a",)), (text,))
    assert TOGETHER == [["a"], ["a"]]


def _make(url: str, log: str, text: str, names: list[str]) -> None:
    TOGETHER.clear()
    with open_session(Session(Store(url), runtime_of(workers=1), "test")):
        given = Artifact.at(Path(text))
        made = word.materialize_all([(WordConfig(word=name), (given,)) for name in names])
    assert [said(artifact) for artifact, _ in made] == [f"{name}!" for name in names]
    with Path(log).open("a") as file:
        file.write("".join(name for asked in TOGETHER for name in asked))


def test_two_runs_that_want_the_same_in_another_order_do_not_wait_for_each_other(
    tmp_path: Path, text: Artifact
) -> None:
    url, log, names = str(tmp_path / "store"), tmp_path / "log", list("abcdefgh")
    Store(url)
    context = multiprocessing.get_context("spawn")
    runs = [
        context.Process(target=_make, args=(url, str(log), str(text.path), order)) for order in (names, names[::-1])
    ]
    for run in runs:
        run.start()
    for run in runs:
        run.join(60)
    assert [run.exitcode for run in runs] == [0, 0]
    assert sorted(log.read_text()) == names, "each is made once"


def test_on_a_plain_folder_they_are_made_in_the_scratch_folder(text: Artifact, tmp_path: Path) -> None:
    out = Output.at(tmp_path / "plain", runtime=runtime_of(workers=1))
    words.function(WordsConfig(words=("a", "b")), text, out)
    assert (out.path / "a.txt").read_text() == "a! b!"
    other = out.obtain_all(word, {"x": (WordConfig(word="x"), (text,))})
    assert said(other["x"]) == "x!", "not what an earlier call has left"
    with pytest.raises(ConfigError, match="can't make several"):
        words.materialize_all([])


def test_what_a_kept_artifact_was_made_of_is_no_garbage(tmp_path: Path, text: Artifact) -> None:
    store = Store(str(tmp_path / "store"))
    with open_session(Session(store, runtime_of(workers=1), "test")):
        words.materialize(WordsConfig(words=("a",)), (text,))
        ((loose, _),) = word.materialize_all([(WordConfig(word="z"), (text,))])
    assert [*find_garbage(store, keep_last=1).artifacts] == [loose.location]


def test_only_the_files_that_are_read_bear_identity(session: Session, tmp_path: Path) -> None:
    folder = tmp_path / "many"
    (folder / "sub").mkdir(parents=True)
    for name in ("a.txt", "b.txt", "sub/c.txt"):
        (folder / name).write_text(name)
    before = Artifact.at(folder)
    some, below = before.only("a.txt"), before.only("sub")
    (folder / "b.txt").write_text("changed")
    after = Artifact.at(folder)
    assert after.digest != before.digest
    assert after.only("a.txt").digest == some.digest != below.digest
    assert after.only("sub").digest == below.digest
    assert after.only("a.txt", "sub").digest not in (some.digest, below.digest, after.digest)
    with pytest.raises(DamagedArtifact, match=r"has no d\.txt"):
        after.only("a.txt", "d.txt")
