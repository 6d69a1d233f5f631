"""`gristmill release push`: nothing goes out unseen or to a place with other files, and what arrives is checked."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from storage.errors import DamagedArtifact
from storage.store import Store
from tasks.export.push.bucket import Bucket
from tasks.export.push.outgoing import look
from tasks.export.push.steps import push_to
from tasks.export.release_folder import verify_unsigned
from tests.flows.commands.test_cli import gristmill, publish
from tests.s3_server import client_of, s3_server

FILES = {
    "README.md": b"# Model card",
    "NOTICE": b"Warning: some of the data is under a share-alike licence.\n\nThe weights are free.\n",
    "model.safetensors": bytes(range(256)),
    "gguf/model-f16.gguf": b"GGUF",
}
TOKEN = f"hf_{'x' * 34}"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("saved")
    publish(Store(str(home / "store")), "export", FILES)
    done = gristmill("release", "save", "tiny/export", str(home / "model"), f"--store={home / 'store'}")
    assert done.returncode == 0, done.stderr
    return home / "model"


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "model"))


def with_text(folder: Path, text: str) -> Path:
    """The release again, with another card."""
    store = folder.with_name(uuid.uuid4().hex)
    publish(Store(str(store)), "export", {**FILES, "README.md": text.encode()})
    gristmill("release", "save", "tiny/export", f"{store}-saved", f"--store={store}")
    return Path(f"{store}-saved")


def push(folder: Path, url: str, *more: str) -> tuple[int, str, str]:
    done = gristmill("release", "push", str(folder), url, *more)
    return done.returncode, done.stdout, done.stderr


def test_a_folder_gets_every_file_and_no_folder_with_others_does(folder: Path, tmp_path: Path) -> None:
    (folder / "SHA256SUMS.sig").write_bytes(b"a signature")
    target = tmp_path / "published" / "model"
    code, said, error = push(folder, str(target), "--yes")
    assert code == 0, error
    for name in (*FILES, "SHA256SUMS", "SHA256SUMS.sig"):
        assert name in said
        assert (target / name).read_bytes() == (folder / name).read_bytes()
    assert "share-alike" in said
    assert verify_unsigned(target) == verify_unsigned(folder)
    (target / "model.safetensors").write_bytes(b"half")
    assert push(folder, str(target), "--yes")[0] == 0, "an upload that broke off goes on"
    assert verify_unsigned(target)
    (target / "theirs").write_bytes(b"")
    code, _, error = push(folder, str(target), "--yes")
    assert (code, "holds other files: theirs" in error) == (1, True)
    code, _, error = push(folder, str(folder / "inside"), "--yes")
    assert (code, "in the release itself" in error) == (1, True)


def test_a_bucket_gets_it_and_is_read_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server() as address:
        for name, value in client_of(address).items():
            monkeypatch.setenv(name, value)
        import s3fs

        fs = s3fs.S3FileSystem()
        fs.mkdir("models")
        code, said, error = push(folder, "s3://models/mine", "--yes")
        assert code == 0, error
        assert "holds the release" in said
        for name, data in FILES.items():
            assert fs.cat_file(f"models/mine/{name}") == data
        fs.pipe_file("models/mine/theirs", b"")
        assert "holds other files: theirs" in push(folder, "s3://models/mine", "--yes")[2]
        assert "doesn't exist" in push(folder, "s3://nowhere/mine", "--yes")[2]
        assert "password or a token" in push(folder, "s3://key:secret@models/mine", "--yes")[2]


def test_other_bytes_than_were_sent_are_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    fs = fsspec.filesystem("memory")
    put = type(fs).put_file

    def lossy(self: object, here: str, there: str, **options: object) -> None:
        put(self, here, there, **options)
        if there.endswith(".gguf"):
            fs.pipe_file(there, b"GGUG")

    monkeypatch.setattr(type(fs), "put_file", lossy)
    with pytest.raises(DamagedArtifact, match=r"gguf/model-f16\.gguf"):
        push_to(Bucket(fs, f"/{uuid.uuid4().hex}", "memory"), look(folder))


def test_nothing_goes_out_unasked(folder: Path, tmp_path: Path) -> None:
    code, said, error = push(folder, str(tmp_path / "target"))
    assert (code, "Give --yes" in error) == (1, True)
    assert "README.md" in said
    assert not (tmp_path / "target").exists()


def test_texts_that_tell_of_their_maker_are_named_and_secrets_never_go_out(folder: Path, tmp_path: Path) -> None:
    told = with_text(folder, f"card\nmade in /home/somebody/work by {getpass.getuser()}@{'machine'}")
    found = {(one.where, one.what) for one in look(told).findings}
    assert ("README.md, line 2", "a home directory: /home/somebody/") in found
    assert ("README.md, line 2", f"this user's address: {getpass.getuser()}@machine") in found
    code, said, _ = push(told, str(tmp_path / "told"), "--yes")
    assert (code, "/home/somebody/" in said) == (0, True)
    secret = with_text(folder, f"use {TOKEN}")
    code, said, error = push(secret, str(tmp_path / "secret"), "--yes")
    assert (code, "a token in README.md, line 1" in error) == (1, True)
    assert TOKEN not in said + error
    assert not (tmp_path / "secret").exists()


def test_a_damaged_release_and_one_in_a_store_are_not_pushed(folder: Path, saved: Path, tmp_path: Path) -> None:
    (folder / "README.md").write_text("another")
    assert "README.md has changed" in push(folder, str(tmp_path / "target"), "--yes")[2]
    inside = next((saved.parent / "store" / "artifacts" / "export").iterdir())
    assert "gristmill release save" in push(inside, str(tmp_path / "target"), "--yes")[2]
    target = saved.parent / "store" / "artifacts" / "more"
    assert "is in a store" in push(saved, str(target), "--yes")[2]


def test_a_name_on_the_hub_is_checked_before_anything_is_read(folder: Path) -> None:
    assert "hf://OWNER/NAME" in push(folder, "hf://datasets/owner/name", "--yes")[2]
    assert "hf://OWNER/NAME" in push(folder, "hf://name", "--yes")[2]


class _Hub(BaseHTTPRequestHandler):
    """As much of the hub as answers whether a repository is there: it is, is public, and has a file."""

    def do_GET(self) -> None:
        here = self.path.partition("?")[0]
        tree = [{"type": "file", "path": self.server.file, "size": 1, "oid": "0" * 40}]  # type: ignore[attr-defined]
        answer = tree if "/tree/" in here else {"id": "me/model", "private": self.server.private}  # type: ignore[attr-defined]
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def hub(*, private: bool, file: str) -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Hub)
    server.private, server.file = private, file  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def push_to_hub(folder: Path, address: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, as the client reads its address once, at import."""
    environment = {**os.environ, "HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0", "HF_TOKEN": "", "NO_PROXY": "*"}
    command = [sys.executable, "-m", "flows.cli", "release", "push", str(folder), "hf://me/model", "--yes"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.soak_but("False-theirs.bin-me/model is public")
@pytest.mark.parametrize(
    ("private", "file", "named"),
    [
        (False, "theirs.bin", "me/model is public"),
        (True, "theirs.bin", "other files: theirs.bin"),
        (True, "README.md", "other files: README.md"),
        (True, "SHA256SUMS", "holds another release"),
    ],
)
def test_a_repository_that_is_public_or_has_files_of_others_is_refused(
    private: bool, file: str, named: str, folder: Path
) -> None:
    with hub(private=private, file=file) as address:
        done = push_to_hub(folder, address)
    assert (done.returncode, named in done.stderr) == (1, True), done.stderr


@pytest.mark.parametrize("address", ["http://127.0.0.1:9", "http://nowhere.invalid", "nowhere"])
def test_a_hub_that_can_t_be_reached_is_one_sentence(address: str, folder: Path) -> None:
    done = push_to_hub(folder, address)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert "The hub refused hf://me/model" in done.stderr
