"""The remedies of `gristmill store verify`, followed to the letter, lead to a sound store."""

# mypy: disable-error-code="func-returns-value"
from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from flows.pipeline import stages
from flows.session import session_of
from profiles.load import load
from storage.store import Store
from tasks.stage.session import open_session
from tests.flows.commands.test_cli import gristmill
from tests.flows.small import SMALL

ROUNDS = 3


def run(store: Path, refresh: tuple[str, ...] = (), *sets: str) -> None:
    """`gristmill run`, of two stages and without Prefect."""
    profile = load("smoke", [*SMALL, "download.benchmarks=[]", *sets, f"runtime.store={store}"])
    session = session_of(profile, None, refresh)
    with open_session(
        replace(session, until="dedup", call=lambda stage, config, inputs: stage.materialize(config, inputs)[0])
    ):
        stages(profile)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two versions of smoke/dedup, and what they were made of; in a folder whose name a shell would part."""
    store = tmp_path_factory.mktemp("store") / "a store"
    run(store, (), "dedup.threshold=0.9")
    run(store)
    return store


def places(store: Path, stage: str) -> list[Path]:
    """Its artifacts, those of the newest ref last."""
    newest = json.loads((store / "refs" / "smoke" / f"{stage}.json").read_text())[-1]["location"].split("/")[1]
    return sorted((store / "artifacts" / stage).iterdir(), key=lambda path: path.name == newest)


def writable(path: Path) -> Path:
    path.chmod(0o644)
    return path


def flip(path: Path) -> None:
    data = writable(path).read_bytes()
    path.write_bytes(bytes([data[0] ^ 1]) + data[1:])


def exchange(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    for old, new in ((one, aside), (other, one), (aside, other)):
        old.rename(new)


def of(stage: str, damage: Callable[[Path], object], which: int = -1) -> Callable[[Path], object]:
    """Damage done to the newest artifact of a stage."""
    return lambda store: damage(places(store, stage)[which])


def reference(stage: str, damage: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda store: damage(store / "refs" / "smoke" / f"{stage}.json")


def into_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def edit(field: str, value: object) -> Callable[[Path], object]:
    """A field of the newest entry of a ref."""

    def change(path: Path) -> None:
        entries = json.loads(path.read_text())
        entries[-1][field] = value
        path.write_text(json.dumps(entries))

    return change


DATA = "documents/00000.parquet"
DAMAGE: dict[str, Callable[[Path], object]] = {
    "a bit": of("dedup", lambda path: flip(path / DATA)),
    "a bit of what others were made of": of("download", lambda path: flip(path / DATA)),
    "a bit of a part": of("sketches", lambda path: flip(path / "shards.json")),
    "a bit of an older version": of("dedup", lambda path: flip(path / DATA), 0),
    "bits of all": lambda store: [flip(path) for path in store.glob("artifacts/*/*/SHA256SUMS")],
    "a file cut short": of("dedup", lambda path: writable(path / DATA).write_bytes(b"")),
    "a file gone": of("dedup", lambda path: (path / DATA).unlink()),
    "a folder gone": of("dedup", lambda path: shutil.rmtree(path / "documents")),
    "a folder for a file": of("dedup", lambda path: into_folder(path / DATA)),
    "a link for a file": of("dedup", lambda path: ((path / DATA).unlink(), (path / DATA).symlink_to("nowhere"))),
    "one file too many": of("dedup", lambda path: (path / "documents" / "new, one.parquet").write_bytes(b"x")),
    "one too many, and a bit": of("dedup", lambda path: ((path / "x").write_bytes(b"x"), flip(path / DATA))),
    "too many in two": lambda store: [(path / "x").write_bytes(b"") for path in store.glob("artifacts/*/*")],
    "the sums gone": of("dedup", lambda path: (path / "SHA256SUMS").unlink()),
    "no manifest": of("dedup", lambda path: (path / "manifest.json").unlink()),
    "no manifest of a part": of("sketches", lambda path: (path / "manifest.json").unlink()),
    "a manifest that is none": of("dedup", lambda path: writable(path / "manifest.json").write_text("{")),
    "a manifest that is a folder": of("dedup", lambda path: into_folder(path / "manifest.json")),
    "a manifest that was edited": of(
        "download",
        lambda path: (text := writable(path / "manifest.json")).write_text(
            text.read_text().replace('"created": "2', '"created": "3')
        ),
    ),
    "an artifact gone": of("dedup", shutil.rmtree),
    "an artifact gone that others were made of": of("download", shutil.rmtree),
    "all artifacts gone": lambda store: shutil.rmtree(store / "artifacts"),
    "a file for an artifact": of("dedup", lambda path: (shutil.rmtree(path), path.write_text("x"))),
    "two versions exchanged": lambda store: exchange(*places(store, "dedup")),
    "two stages exchanged": lambda store: exchange(places(store, "dedup")[-1], places(store, "download")[-1]),
    "a part exchanged": lambda store: exchange(places(store, "sketches")[-1], places(store, "dedup")[-1]),
    "another's copy under the next number": of(
        "dedup", lambda path: shutil.copytree(places(path.parents[2], "download")[-1], f"{path}.2")
    ),
    "a ref that is none": reference("dedup", lambda path: path.write_text("[")),
    "a ref that is empty": reference("download", lambda path: path.write_text("[]")),
    "a ref that is a folder": reference("dedup", into_folder),
    "a ref of another digest": reference("dedup", edit("digest", "0" * 64)),
    "a part's ref of another digest": reference("sketches", edit("digest", "0" * 64)),
    "a ref to nothing": reference("dedup", edit("location", "dedup/0123456789abcdef")),
    "a part's ref to nothing": reference("sketches", edit("location", "sketches/0123456789abcdef")),
    "a ref and its artifact": lambda store: (
        flip(places(store, "dedup")[-1] / DATA),
        (store / "refs" / "smoke" / "dedup.json").write_text(""),
    ),
    "an artifact whose ref is gone": lambda store: (
        flip(places(store, "download")[-1] / DATA),
        (store / "refs" / "smoke" / "download.json").unlink(),
    ),
    "all refs gone, and a bit": lambda store: (flip(places(store, "dedup")[-1] / DATA), shutil.rmtree(store / "refs")),
    "the store's file": lambda store: (store / "gristmill.json").write_text("{"),
    "the store's file gone": lambda store: (store / "gristmill.json").unlink(),
}


def follow(told: str, store: Path) -> None:
    """Do what a remedy says, and nothing else. It must say something."""
    remedy = " ".join(told.partition("What to do:")[2].split())
    done = False
    if found := re.search(r"write (\{.*?\}) into that file", remedy):
        (store / "gristmill.json").write_text(found[1])
        done = True
    if found := re.search(r"Delete (.+?)\. (?:Rebuild|Then|Run|The next)|Delete (.+)\.$", remedy):
        words = shlex.shlex(found[1] or found[2], posix=True, punctuation_chars=",")
        words.whitespace_split = True
        for path in (word for word in words if word != ","):
            shutil.rmtree(path) if Path(path).is_dir() else Path(path).unlink()
            done = True
    for command in re.findall(r"gristmill run .+?(?=; gristmill|\. Name)", remedy):
        _, _, profile, option, url, *refreshed = shlex.split(command)
        assert (profile, option, url) == ("smoke", "--store", str(store))
        run(store, tuple(refreshed[1::2]))
        done = True
    for command in re.findall(r"`gristmill (store gc --delete [^`]+)`", remedy):
        collected = gristmill(*shlex.split(command))
        assert collected.returncode == 0, collected.stderr
        done = True
    assert done, f"nothing can be done of: {remedy}"


@pytest.mark.soak_but(
    "a bit",
    "one file too many",
    "a manifest that is none",
    "a file for an artifact",
    "two versions exchanged",
    "two stages exchanged",
    "another's copy under the next number",
    "a ref that is none",
    "a part's ref to nothing",
    "an artifact whose ref is gone",
)
@pytest.mark.parametrize("damage", DAMAGE)
def test_what_verify_says_of_damage_leads_to_a_sound_store(damage: str, sound: Path, tmp_path: Path) -> None:
    store = tmp_path / "a store"
    shutil.copytree(sound, store)
    DAMAGE[damage](store)
    told = gristmill("store", "verify", f"--store={store}")
    assert told.returncode == 1 or "rebuilt since: gc removes it" in told.stdout
    for _ in range(ROUNDS * told.returncode):
        follow(told.stderr, store)
        told = gristmill("store", "verify", f"--store={store}")
        if not told.returncode:
            break
    assert (told.returncode, told.stderr) == (0, "")
    run(store)
    gristmill("store", "gc", "--delete", f"--store={store}")
    left = gristmill("store", "verify", f"--store={store}")
    assert (left.returncode, "damaged" in left.stdout) == (0, False)
    assert len(list(Store(str(store)).locations())) == 3
