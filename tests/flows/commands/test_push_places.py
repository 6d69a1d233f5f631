"""Targets of `gristmill release push`: it replaces no one else's files, and refuses impossible places before asking."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.export.push.folder import Folder
from tasks.export.release_folder import verify_unsigned
from tests.flows.commands.test_push import FILES, push, saved, with_text  # noqa: F401
from tests.s3_server import client_of, s3_server

SUMS, PART = "SHA256SUMS", "SHA256SUMS.part"


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:  # noqa: F811
    return Path(shutil.copytree(saved, tmp_path / "model"))


def refused(folder: Path, url: str, *named: str) -> None:
    """A place is refused before the question, or at least in a sentence."""
    code, _, error = push(folder, url, "--yes")
    assert code == 1, error
    assert "What to do:" in error
    for one in named:
        assert one in error


def test_files_of_others_with_names_of_ours_are_not_replaced(folder: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "README.md").write_text("notes")
    refused(folder, str(mine), "holds other files: README.md")
    assert [path.name for path in mine.iterdir()] == ["README.md"]
    assert (mine / "README.md").read_text() == "notes"
    (mine / "README.md").write_bytes(FILES["README.md"])
    assert push(folder, str(mine), "--yes")[0] == 0, "a file with our bytes is ours"


def test_another_release_is_not_replaced_nor_what_is_left_of_one(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "there"
    assert push(folder, str(target), "--yes")[0] == 0
    other = with_text(folder, "the second")
    refused(other, str(target), "holds another release")
    assert verify_unsigned(target) == verify_unsigned(folder)
    (target / SUMS).rename(target / PART)
    refused(other, str(target), "the rest of another release's upload")
    assert push(folder, str(target), "--yes")[0] == 0
    assert verify_unsigned(target) == verify_unsigned(folder)


def test_an_upload_that_was_interrupted_says_so_and_goes_on(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, put = tmp_path / "there", Folder.put

    def interrupted(self: Folder, source: Path, name: str) -> None:
        if name == "model.safetensors":
            (self.path / name).write_bytes(b"half")
            raise KeyboardInterrupt
        put(self, source, name)

    with monkeypatch.context() as patched:
        patched.setattr(Folder, "put", interrupted)
        code, _, error = push(folder, str(target), "--yes")
    assert (code, "Push it again to go on" in error, "Traceback" in error) == (130, True, False)
    assert (target / PART).read_bytes() == (folder / SUMS).read_bytes()
    assert not (target / SUMS).exists()
    assert push(folder, str(target), "--yes")[0] == 0
    assert verify_unsigned(target) == verify_unsigned(folder)
    (target / SUMS).unlink()
    (target / PART).write_bytes((folder / SUMS).read_bytes()[:20])
    assert push(folder, str(target), "--yes")[0] == 0, "the marker itself was cut off"
    assert verify_unsigned(target)


def _link(there: Path) -> None:
    (there.parent / "precious").write_text("precious")
    (there / "README.md").symlink_to("../precious")


def _linked_folder(there: Path) -> None:
    (there.parent / "elsewhere").mkdir()
    (there / "gguf").symlink_to("../elsewhere")


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (_link, "README.md"),
        (_linked_folder, "gguf"),
        (lambda there: os.mkfifo(there / "README.md"), "README.md"),
        (lambda there: (there / "empty").mkdir(), "empty/"),
    ],
)
def test_links_pipes_and_empty_folders_are_refused(
    spoil: Callable[[Path], None], named: str, folder: Path, tmp_path: Path
) -> None:
    there = tmp_path / "there"
    there.mkdir()
    spoil(there)
    refused(folder, str(there), "other than plain files", named)
    assert not (there / PART).exists()
    if (tmp_path / "precious").exists():
        assert (tmp_path / "precious").read_text() == "precious"


def test_a_repaired_file_keeps_its_other_names_as_they_are(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "there"
    assert push(folder, str(target), "--yes")[0] == 0
    (tmp_path / "precious").write_text("precious")
    (target / "README.md").unlink()
    (target / "README.md").hardlink_to(tmp_path / "precious")
    assert push(folder, str(target), "--yes")[0] == 0
    assert (tmp_path / "precious").read_text() == "precious"
    assert verify_unsigned(target)


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("memory://x", "ends with this process"),
        ("serve:state", "gristmill serve swap"),
        ("data:text,x", "data"),
        ("zip://x::file:///tmp/x.zip", "chain"),
        ("simplecache::s3://b/x", "chain"),
        ("dir://x", "dir"),
        ("https://example.org/x", "https"),
        ("s3:/ccc/x2", "Write s3://ccc/x2"),
        ("s3:ccc", "Write s3://ccc"),
        ("S3:/ccc", "lacks a slash"),
        ("s3://", "lacks the name of a bucket"),
        ("s3:///x", "lacks the name of a bucket"),
        ("s3://ccc//dd", "two slashes"),
        ("s3://b/x/../y", "`..`"),
        ("HF://owner", "hf://OWNER/NAME"),
        ("hf:/me/model", "Write hf://me/model"),
        ("", "is empty"),
    ],
)
def test_an_address_that_is_no_place_is_refused_before_the_question(url: str, named: str, folder: Path) -> None:
    code, said, error = push(folder, url)
    assert (code, said) == (1, "")
    assert named in error


def test_a_password_in_an_address_is_not_shown(folder: Path) -> None:
    code, said, error = push(folder, "sftp://me:hidden-word@example.org/x")
    assert (code, said, "hidden-word" in error) == (1, "", False)
    assert "password or a token" in error


def test_a_scheme_may_be_in_capitals(folder: Path, tmp_path: Path) -> None:
    assert push(folder, f"FILE://{tmp_path}/there", "--yes")[0] == 0
    assert verify_unsigned(tmp_path / "there")


def test_a_folder_that_can_be_none_is_refused_in_a_sentence(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    refused(folder, str(tmp_path / "file"), "is a file")
    refused(folder, str(tmp_path / "file" / "x"), "is a file")
    refused(folder, str(tmp_path / "dangling"), "link to nothing")
    refused(folder, str(tmp_path / "circle"))
    refused(folder, "/proc/x", "/proc/x")
    refused(folder, "x" * 300, "name too long")


@pytest.mark.skipif(not Path("/dev/full").exists() or os.geteuid() == 0, reason="needs a user without all rights")
def test_a_folder_that_may_not_be_written_has_its_own_remedy(folder: Path, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    code, _, error = push(folder, str(closed / "x"), "--yes")
    assert (code, "this user may write" in error, "store" in error) == (1, True, False)


def test_a_full_disk_has_its_own_remedy(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "a file")

    monkeypatch.setattr("tasks.export.push.folder.shutil.copyfileobj", full)
    code, _, error = push(folder, str(tmp_path / "there"), "--yes")
    assert (code, "with room" in error, "gc" in error) == (1, True, False)


def test_markers_of_folders_in_a_bucket_are_no_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server() as address:
        for name, value in client_of(address).items():
            monkeypatch.setenv(name, value)
        import s3fs

        ask = s3fs.S3FileSystem().call_s3
        ask("create_bucket", Bucket="marked")
        for key in ("release/", "release/gguf/"):
            ask("put_object", Bucket="marked", Key=key, Body=b"")
        for _ in range(2):
            code, _, error = push(folder, "s3://marked/release", "--yes")
            assert code == 0, error
        keys = {one["Key"] for one in ask("list_objects_v2", Bucket="marked")["Contents"]}
        assert keys == {
            "release/",
            "release/gguf/",
            *(f"release/{name}" for name in (*FILES, "report.html", "report.json", SUMS)),
        }
        refused(with_text(folder, "the second"), "s3://marked/release", "holds another release")
        ask("put_object", Bucket="marked", Key="mine/README.md", Body=b"notes")
        refused(folder, "s3://marked/mine", "holds other files: README.md")
        ask("put_object", Bucket="marked", Key="file", Body=b"notes")
        refused(folder, "s3://marked/file", "holds other files")
        assert s3fs.S3FileSystem().cat_file("marked/mine/README.md") == b"notes"
