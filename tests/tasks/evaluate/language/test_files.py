"""Text files of the user: read to the byte, and refused by name where they are no text."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from storage.errors import ConfigError, GristmillError, SourceError
from tasks.evaluate.language.config import LanguageConfig
from tasks.evaluate.language.files import MOST_BYTES, check_files, fingerprints, read_texts

ROWS = [{"text": "one\r\ntwo\u2028"}, {"text": ""}, {"text": "three", "id": 3}]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def packed(data: bytes) -> bytes:
    """The same bytes each time: names of tests are made of them."""
    return gzip.compress(data, mtime=0)


@pytest.mark.parametrize(
    ("name", "data", "texts"),
    [
        ("a.txt", "Füchse\r\nund\x00 Hühner\n".encode(), ["Füchse\r\nund\x00 Hühner\n"]),
        ("README", b"no suffix", ["no suffix"]),
        ("b.txt.gz", packed(b"packed"), ["packed"]),
        ("c.jsonl", LINES, ["one\r\ntwo\u2028", "three"]),
        ("d.JSONL.GZ", packed(LINES + b"\n \n"), ["one\r\ntwo\u2028", "three"]),
        ("marked.jsonl", b"\xef\xbb\xbf" + LINES, ["one\r\ntwo\u2028", "three"]),
        ("e.v1.2.txt", b'{"text": "this is plain text"}', ['{"text": "this is plain text"}']),
    ],
)
def test_a_file_is_read_as_it_stands(tmp_path: Path, name: str, data: bytes, texts: list[str]) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    assert list(read_texts("mine", path)) == texts


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("a.txt", b"", "contains no text"),
        ("a.jsonl", b"", "contains no text"),
        ("a.jsonl", b'{"text": ""}\n\n', "contains no text"),
        ("a.txt", b"fine\xff", "n't UTF-8: byte 0xff at 4"),
        ("a.txt", "UTF-16".encode("utf-16"), "n't UTF-8"),
        ("a.jsonl", b'{"text": "x"}\n{"text": "\xe9"}\n', "n't UTF-8 on line 2"),
        ("a.jsonl", b'{"text": "x"}\n{"te', "n't JSON Lines with a `text` on line 2"),
        ("a.jsonl", b'["text"]\n', "on line 1"),
        ("a.jsonl", b'{"text": 3}\n', "on line 1"),
        ("a.jsonl", b'{"content": "x"}\n', "lacks `text` on line 1"),
        ("a.jsonl", b'{"text": "\\ud800"}\n', "on line 1"),
        ("a.jsonl", b"[" * 100_000, "on line 1"),
        ("a.txt", b"x" * 10_000_000, "is one document of more than 8,388,608 bytes"),
        ("a.jsonl", b'{"text": "' + b"x" * 10_000_000 + b'"}\n', "has a document on line 1 of more than"),
        ("a.jsonl", b"x" * 20_000_000, "has a document on line 1 of more than"),
        ("a.txt.gz", b"not packed", "can't be read"),
        ("a.txt.gz", packed(b"packed" * 1000)[:-12], "can't be read"),
        ("a.txt.gz", packed(b"\0" * (MOST_BYTES + 1)), "is one document of more than"),
    ],
)
def test_what_is_no_text_is_refused_with_its_name_and_place(tmp_path: Path, name: str, data: bytes, says: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(SourceError, match=r"evaluate\.language\.files\.mine") as caught:
        check_files(LanguageConfig(files={"mine": str(path)}))
    assert says in caught.value.message
    assert caught.value.remedy


def test_what_is_no_file_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    for given, says in (
        (tmp_path, "is a folder"),
        (tmp_path / "missing.txt", "doesn't exist"),
        (tmp_path / "dangling", "doesn't exist"),
        (tmp_path / "pipe", "not a plain file"),
        ("nul\0.txt", "doesn't exist"),
        ("x" * 5000, "doesn't exist"),
        ("~nobody-of-this-name/a.txt", "doesn't exist"),
    ):
        config = LanguageConfig(files={"mine": str(given)})
        for ask in (fingerprints, check_files):
            with pytest.raises(ConfigError, match=says):
                ask(config)


def test_a_flipped_byte_is_another_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"text")
    before = fingerprints(LanguageConfig(files={"mine": str(path)}))
    path.write_bytes(b"tezt")
    assert fingerprints(LanguageConfig(files={"mine": str(path)})) != before


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("text")
    path.chmod(0)
    with pytest.raises(GristmillError, match="can't be read"):
        fingerprints(LanguageConfig(files={"mine": str(path)}))


@pytest.mark.parametrize("name", ["", "../up", "a b", "x" * 65, "|", "ü"])
def test_names_are_words(name: str) -> None:
    with pytest.raises(ValidationError):
        LanguageConfig(files={name: "a.txt"})
