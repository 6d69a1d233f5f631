"""The store beside a model of it in memory, through any sequence of what runs, people and accidents do to it.

Two writers share a store: two processes on a folder, or two machines on a bucket. A crash is an exception, which
nothing catches, at one of the steps of publishing or of removing; damage changes a file behind the store's back.
"""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from storage import inspect, maintain, refs
from storage.artifact import Artifact
from storage.digests import list_files, tree_digest
from storage.errors import DamagedArtifact
from storage.keys import KeyPayload
from storage.leases import Lease
from storage.manifest import MANIFEST, InputRef, Manifest
from storage.store import Store
from tests.storage.conftest import use_s3

WRITERS = st.integers(0, 1)
STAGES = st.sampled_from(["download", "dedup"])
CONTENTS = st.sampled_from([{"a.bin": b"one", "folder/b.bin": b"two"}, {"a.bin": b"eno"}, {"folder/c.bin": b"three"}])
NAMES = st.sampled_from(["tiny/one", "tiny/two"])
STEPS = ("flush_tree", "flush", "put_file", "rm")


class Killed(BaseException):
    """As SIGKILL: nothing of the process runs after it."""


@dataclass
class Made:
    """What the model knows of an artifact. `changed` are its damaged files, by what happened to them."""

    key: str
    digest: str
    files: dict[str, bytes]
    origin: str | None
    changed: dict[str, str] = field(default_factory=dict)


class StoreMachine(RuleBasedStateMachine):
    """A folder store; subclasses put the same into a bucket."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self._temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self._temporary.name)
        self.made: dict[str, Made] = {}
        self.fragments: set[str] = set()
        self.refs: dict[str, list[tuple[str, str]]] = {}  # location and digest
        self.leases: list[tuple[int, str, Lease]] = []
        self.locks: list[tuple[int, str, AbstractContextManager[None]]] = []
        self.workspaces: set[tuple[int, str]] = set()

    @initialize()
    def open(self) -> None:
        url = f"{self.url}{uuid.uuid4().hex}/store" if self.url else str(self.folder / "store")
        self.stores = [Store(url, cache=self.folder / f"machine {number}") for number in (0, 1)]
        self.folder_store = self.stores[0].is_folder
        self.shared = self.folder_store or self.stores[0].shared is not None

    def teardown(self) -> None:
        for _, _, lock in self.locks:
            lock.__exit__(None, None, None)
        for _, _, lease in self.leases:
            lease.__exit__(None, None, None)
        self._temporary.cleanup()

    # --- what the model says ------------------------------------------------------------------------------------

    def generations(self, key: str) -> list[str]:
        found = [location for location, made in self.made.items() if made.key == key]
        return sorted(found, key=lambda location: int(location.partition(".")[2] or 1))

    def readable(self, location: str) -> bool:
        return location in self.made and MANIFEST not in self.made[location].changed

    def twin(self, location: str) -> str:
        mine = self.made[location].digest if self.readable(location) else None
        for newer in reversed(self.generations(location.partition(".")[0])):
            if self.readable(newer) and mine in (None, self.made[newer].digest):
                return newer
        return location

    def needed(self, keep_last: int) -> set[str]:
        found: set[str] = set()
        waiting = [location for entries in self.refs.values() for location, _ in entries[-keep_last:]]
        while waiting:
            location = self.twin(waiting.pop())
            if location in found:
                continue
            found.add(location)
            if self.readable(location) and (origin := self.made[location].origin):
                waiting.append(origin)
        return found

    def held(self, writer: int) -> set[str]:
        """Keys that a collection lets be: leased by a process that it can know of, or locked on this machine."""
        leased = {key for number, key, _ in self.leases if self.shared or number == writer}
        return leased | self.locked(writer)

    def locked(self, writer: int) -> set[str]:
        return {key for number, key, _ in self.locks if self.folder_store or number == writer}

    def waited_for(self, writer: int) -> set[str]:
        return {key for number, key, _ in self.locks if self.shared or number == writer}

    # --- what runs do -------------------------------------------------------------------------------------------

    def _manifest(self, folder: Path, stage: str, origin: str | None) -> Manifest:
        inputs = {"raw": self.made[origin].digest} if origin else {}
        payload = KeyPayload(stage=stage, version=1, config={}, inputs=inputs)
        files = list_files(folder)
        return Manifest(
            key=payload.key(),
            payload=payload,
            digest=tree_digest(files),
            files=files,
            origins={"raw": InputRef(location=origin)} if origin else {},
            created=datetime.now(UTC).isoformat(),
        )

    def _prepare(self, writer: int, stage: str, origin: str | None, files: dict[str, bytes]) -> Any:
        """The folder that a stage has filled, and its manifest."""
        store = self.stores[writer]
        inputs = {"raw": self.made[origin].digest} if origin else {}
        key = KeyPayload(stage=stage, version=1, config={}, inputs=inputs).key()
        if f"{stage}/{key}" in self.waited_for(writer):
            self.unlock_all()
        folder = store.workspace(stage, key) / "out"
        for path in sorted(folder.rglob("*"), reverse=True):  # what an earlier attempt has left
            path.rmdir() if path.is_dir() else path.unlink()
        for name, data in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        return folder, self._manifest(folder, stage, origin)

    def _origin(self, data: st.DataObject) -> str | None:
        sound = sorted(location for location, made in self.made.items() if not made.changed)
        return data.draw(st.sampled_from([None, *sound]))

    def _next(self, manifest: Manifest) -> str:
        """Where an artifact is published: in the place of an intact one of the same bytes that was made of the same, or
        behind the newest."""
        key = f"{manifest.stage}/{manifest.key}"
        known = self.generations(key)
        if not known:
            return key
        newest = self.made[known[-1]]
        made_of = next((one.location for one in manifest.origins.values()), None)
        if (newest.digest, newest.origin) == (manifest.digest, made_of) and not newest.changed:
            return known[-1]
        return f"{key}.{int(known[-1].partition('.')[2] or 1) + 1}"

    def _published(self, location: str, manifest: Manifest, files: dict[str, bytes], origin: str | None) -> None:
        key = f"{manifest.stage}/{manifest.key}"
        self.fragments.discard(location)
        if location not in self.made:
            self.made[location] = Made(key, manifest.digest, files, origin)

    @rule(writer=WRITERS, stage=STAGES, files=CONTENTS, data=st.data())
    def publish(self, writer: int, stage: str, files: dict[str, bytes], data: st.DataObject) -> None:
        origin = self._origin(data) if stage != "download" else None
        folder, manifest = self._prepare(writer, stage, origin, files)
        expected = self._next(manifest)
        with self.stores[writer].lock(stage, manifest.key):
            found = self.stores[writer].publish(folder, manifest)
        self._published(found.location, manifest, files, origin)
        assert found.location == expected
        self._check(found)

    @rule(
        writer=WRITERS,
        stage=STAGES,
        files=CONTENTS,
        step=st.sampled_from(STEPS),
        after=st.integers(0, 4),
        data=st.data(),
    )
    def crash_while_publishing(
        self, writer: int, stage: str, files: dict[str, bytes], step: str, after: int, data: st.DataObject
    ) -> None:
        origin = self._origin(data) if stage != "download" else None
        folder, manifest = self._prepare(writer, stage, origin, files)
        expected = self._next(manifest)
        store = self.stores[writer]
        with suppress(Killed), killed_at(store, step, after), store.lock(stage, manifest.key):
            store.publish(folder, manifest)
        store.fs.invalidate_cache()
        if store.manifest(expected) is not None:
            self._published(expected, manifest, files, origin)
        self._look_for_fragments()

    @rule(writer=WRITERS, data=st.data())
    @precondition(lambda self: self.made)
    def find(self, writer: int, data: st.DataObject) -> None:
        key = self.made[data.draw(st.sampled_from(sorted(self.made)))].key
        newest = self.generations(key)[-1]
        damaged = self.made[newest].changed
        stage, name = key.split("/")
        try:
            found = self.stores[writer].find(stage, name)
            assert found is not None
            self._check(found)
        except DamagedArtifact:
            assert damaged
            return
        assert found.location == newest
        assert not damaged or not self.folder_store, "a bucket's copy on this machine may be whole"

    def _check(self, artifact: Artifact) -> None:
        files = self.made[artifact.location].files
        assert {name: (artifact.path / name).read_bytes() for name in files} == files

    @rule(writer=WRITERS, name=NAMES, data=st.data())
    @precondition(lambda self: self.made)
    def move_ref(self, writer: int, name: str, data: st.DataObject) -> None:
        location = data.draw(st.sampled_from(sorted(self.made)))
        entry = location, self.made[location].digest
        number = refs.move(self.stores[writer], name, *entry)
        entries = self.refs.setdefault(name, [])
        if entries[-1:] != [entry]:
            entries.append(entry)
        assert number == len(entries)

    @rule(writer=WRITERS, data=st.data())
    @precondition(lambda self: self.made)
    def lease(self, writer: int, data: st.DataObject) -> None:
        key = self.made[data.draw(st.sampled_from(sorted(self.made)))].key
        lease = Lease(self.stores[writer])
        lease.add(key)
        self.leases.append((writer, key, lease))

    @rule()
    @precondition(lambda self: self.leases)
    def end_lease(self) -> None:
        self.leases.pop()[2].__exit__(None, None, None)

    @rule(writer=WRITERS, data=st.data())
    @precondition(lambda self: self.made)
    def lock(self, writer: int, data: st.DataObject) -> None:
        key = self.made[data.draw(st.sampled_from(sorted(self.made)))].key
        if key in self.waited_for(writer):
            return
        stage, name = key.split("/")
        lock = self.stores[writer].lock(stage, name)
        lock.__enter__()
        self.locks.append((writer, key, lock))

    @rule()
    @precondition(lambda self: self.locks)
    def unlock(self) -> None:
        self.locks.pop()[2].__exit__(None, None, None)

    def unlock_all(self) -> None:
        while self.locks:
            self.unlock()

    # --- accidents ----------------------------------------------------------------------------------------------

    def _write(self, path: str, data: bytes) -> None:
        """Behind the store's back; into a new file, as two changes in one tick of the clock look alike."""
        store = self.stores[0]
        if self.folder_store:
            draft = self.folder / "draft"
            draft.write_bytes(data)
            draft.rename(path)
        else:
            store.fs.pipe_file(path, data)

    @rule(how=st.sampled_from(["flip", "cut", "delete", "add"]), data=st.data())
    @precondition(lambda self: any(not made.changed for made in self.made.values()))
    def damage(self, how: str, data: st.DataObject) -> None:
        location = data.draw(st.sampled_from(sorted(place for place, made in self.made.items() if not made.changed)))
        made, store = self.made[location], self.stores[0]
        root = f"{store.root}/artifacts/{location}"
        name = data.draw(st.sampled_from([*sorted(made.files), "SHA256SUMS"]))
        whole = bytes(store.fs.cat_file(f"{root}/{name}"))
        if how == "add":
            name = "stray.bin"
            self._write(f"{root}/{name}", b"stray")
        elif how == "delete":
            store.fs.rm_file(f"{root}/{name}")
        else:
            at = data.draw(st.integers(0, len(whole) - 1))
            self._write(
                f"{root}/{name}", whole[:at] if how == "cut" else whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
            )
        made.changed[name] = how

    @rule(how=st.sampled_from(["flip", "cut"]), data=st.data())
    @precondition(lambda self: any(not made.changed for made in self.made.values()))
    def damage_manifest(self, how: str, data: st.DataObject) -> None:
        location = data.draw(st.sampled_from(sorted(place for place, made in self.made.items() if not made.changed)))
        store = self.stores[0]
        path = f"{store.root}/artifacts/{location}/{MANIFEST}"
        text = json.loads(bytes(store.fs.cat_file(path)))
        changed = json.dumps({**text, "digest": "0" * 64}) if how == "flip" else json.dumps(text)[:-1]
        self._write(path, changed.encode())
        self.made[location].changed[MANIFEST] = how

    @rule(data=st.data())
    @precondition(lambda self: self.made)
    def lose_manifest(self, data: st.DataObject) -> None:
        location = data.draw(st.sampled_from(sorted(self.made)))
        self.stores[0].fs.rm_file(f"{self.stores[0].root}/artifacts/{location}/{MANIFEST}")
        del self.made[location]
        self._look_for_fragments()

    # --- what people do -----------------------------------------------------------------------------------------

    @rule(writer=WRITERS)
    def verify(self, writer: int) -> None:
        for location, made in self.made.items():
            problems = inspect.verify(self.stores[writer], location)
            assert len(problems) == len(made.changed), problems
            for name in made.changed.keys() - {MANIFEST}:
                assert any(f"{location}/{name} " in problem for problem in problems)

    @rule(writer=WRITERS, keep_last=st.integers(1, 3), kill=st.none() | st.integers(0, 3))
    def collect_garbage(self, writer: int, keep_last: int, kill: int | None) -> None:
        store = self.stores[writer]
        self._look_for_fragments()
        garbage = maintain.find_garbage(store, keep_last, settled=0)
        needed, held = self.needed(keep_last), self.held(writer)
        mystery = any(location in self.made and not self.readable(location) for location in needed)
        copies = self._copies(store)
        free = {place for place in [*self.made, *self.fragments, *copies] if place not in needed | held}
        free = {place for place in free if place.partition(".")[0] not in held}
        expected = {place for place in free if not (mystery and self.readable(place))}
        assert set(garbage.artifacts) == expected
        assert not {path.name for path in garbage.workspaces} & {key.replace("/", "-") for key in self.locked(writer)}
        if kill is None:
            maintain.collect(store, garbage)
            assert not any(path.exists() for path in garbage.workspaces)
        else:
            with suppress(Killed), killed_at(store, "rm", kill):
                maintain.collect(store, garbage)
        store.fs.invalidate_cache()
        for location in expected & self.made.keys():
            if kill is None or not store.fs.exists(f"{store.root}/artifacts/{location}/{MANIFEST}"):
                del self.made[location]
        self._look_for_fragments()
        assert kill is not None or not (self.fragments | self._copies(store)) & expected

    def _copies(self, store: Store) -> set[str]:
        """This machine's copies of what is not in the bucket."""
        if store.is_folder:
            return set()
        found = (path.relative_to(store.local / "artifacts") for path in (store.local / "artifacts").glob("*/*"))
        return {path.as_posix() for path in found} - self.made.keys() - self.fragments

    def _look_for_fragments(self) -> None:
        """What an accident has left: folders without a manifest, which the model takes from the disk itself."""
        store = self.stores[0]
        store.fs.invalidate_cache()
        root = f"{store.root}/artifacts"
        files = store.fs.find(root, withdirs=True) if store.fs.exists(root) else []
        parts = [str(path).partition("/artifacts/")[2].split("/") for path in files]
        folders = {"/".join(part[:2]) for part in parts if len(part) > 1}
        self.fragments = folders - self.made.keys()

    @invariant()
    def what_is_published_is_there(self) -> None:
        if hasattr(self, "stores"):
            for store in self.stores:
                assert list(store.locations()) == sorted(self.made)
                for name, entries in self.refs.items():
                    assert [(entry.location, entry.digest) for entry in refs.history(store, name)] == entries


@contextmanager
def killed_at(store: Store, step: str, after: int) -> Iterator[None]:
    """The process dies before the step is taken for the (after + 1)-th time."""
    left = after

    def dying(function: Any) -> Any:
        def replaced(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            return function(*arguments, **options)

        return replaced

    with pytest.MonkeyPatch.context() as patch:
        if step in ("put_file", "rm"):
            patch.setattr(store.fs, step, dying(getattr(store.fs, step)))
        else:
            import storage.store

            patch.setattr(storage.store, step, dying(getattr(storage.store, step)))
        yield


class BucketMachine(StoreMachine):
    """A bucket in memory."""

    url = "memory://"


class S3Machine(StoreMachine):
    """A bucket on the local S3 server."""

    url = f"s3://{uuid.uuid4().hex}/"


def run(machine: type[StoreMachine], examples: int, steps: int) -> None:
    choices = settings(max_examples=examples, stateful_step_count=steps, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(machine, settings=choices)


@pytest.mark.soak_but("folder")
@pytest.mark.parametrize("machine", [StoreMachine, BucketMachine], ids=["folder", "memory"])
def test_nothing_that_happens_to_a_store_loses_or_changes_what_is_needed(machine: type[StoreMachine]) -> None:
    run(machine, 50, 25)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("machine", "examples"), [(StoreMachine, 300), (BucketMachine, 300), (S3Machine, 4)], ids=["folder", "memory", "s3"]
)
def test_nor_does_anything_that_happens_to_it_for_long(
    machine: type[StoreMachine], examples: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if machine is S3Machine:
        use_s3(request, monkeypatch)
        import s3fs

        s3fs.S3FileSystem().mkdir(S3Machine.url.removeprefix("s3://").rstrip("/"))
    run(machine, examples, 40)
