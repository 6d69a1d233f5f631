"""JSON arrays as sources: the same rows as JSON Lines, however the file is compressed and laid out."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import SourceError
from tasks.download.config import FileSource
from tasks.download.sources.arrays import BrokenArray, split_array
from tasks.download.sources.files import read_rows
from tasks.download.sources.rows import Refused, Row

ROWS: list[dict[str, Any]] = [
    {"text": 'quote " backslash \\ brackets ]}[{ comma ,', "n": [1, {"a": []}]},
    {"text": "é \u2028 \n", "deep": {"a": {"b": ["]"]}}},
    {"text": "\\" * 5 + '"'},
]


def read(path: Path, limit: int = 1000, **more: Any) -> list[Row | Refused]:
    return list(read_rows(FileSource(name="mine", paths=[str(path)], **more), limit))


@pytest.mark.parametrize("ending", ["json", "json.gz", "json.zst"])
@pytest.mark.parametrize("laid_out", [{}, {"indent": 2}, {"separators": (",", ":"), "ensure_ascii": False}])
def test_an_array_gives_the_rows_that_are_in_it(ending: str, laid_out: dict[str, Any], tmp_path: Path) -> None:
    path, data = tmp_path / f"rows.{ending}", b"\xef\xbb\xbf \n" + json.dumps(ROWS, **laid_out).encode() + b"\n"
    if ending == "json.zst":
        with pa.output_stream(str(path), compression="zstd") as stream:
            stream.write(data)
    else:
        path.write_bytes(gzip.compress(data) if ending == "json.gz" else data)
    assert read(path) == [Row(row, f"{path} row {number}") for number, row in enumerate(ROWS, 1)]


def test_objects_a_line_are_read_from_json_files_too(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text("\n".join(map(json.dumps, ROWS)))
    assert read(path) == [Row(row, f"{path}:{number}") for number, row in enumerate(ROWS, 1)]
    path.write_text(json.dumps({"data": ROWS}, indent=2))
    first = read(path)[0]
    assert isinstance(first, Refused)
    assert first.detail == f"{path}:1: a file that doesn't begin with [ needs an object on each line"


def test_a_bad_element_costs_no_other(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    bad = [
        b"7",
        b"",
        b'{"text": nul}',
        b'{"text": "caf\xe9"}',
        b'{"text": "%s"}' % (b"x" * 2000),
        b"{]",
        b'{"a": [}]',
        b"[1]",
    ]
    path.write_bytes(b"[" + b", ".join([b'{"text": "a"}', *bad, b'{"text": "b"}']) + b"]")
    found = read(path)
    assert [row.values["text"] for row in found if isinstance(row, Row)] == ["a", "b"]
    assert [(row.reason, row.place) for row in found if isinstance(row, Refused)] == [
        (reason, f"{path} row {number}")
        for number, reason in enumerate(
            [
                "not_an_object",
                "broken_json",
                "broken_json",
                "invalid_utf8",
                "too_long",
                "broken_json",
                "broken_json",
                "not_an_object",
            ],
            2,
        )
    ]


@pytest.mark.parametrize("data", ["[", '[{"a": 1}', '[{"a": "b]', "[1] 2", "[1][2]", "[1]]", "[1],", '[{"a": 1}, '])
def test_a_file_that_is_cut_or_more_than_an_array_ends_the_run(data: str, tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(data)
    with pytest.raises(SourceError, match=r"rows\.json can't be read: (it ends within its array|there is more in it)"):
        read(tmp_path / "rows.json")


def test_an_empty_array_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(" [ \n ] ")
    assert read(tmp_path / "rows.json") == []


def test_a_limit_is_the_number_of_rows_that_are_read_of_all_files(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(json.dumps([*ROWS, 7]))
    assert len(read(tmp_path / "*.json")) == 8
    assert read(tmp_path / "*.json", limit=1000)[:6] == list(
        read_rows(FileSource(name="mine", paths=[str(tmp_path / "*.json")], limit=6), 1000)
    )


VALUES = st.recursive(
    st.none() | st.integers() | st.text(st.sampled_from('a"\\[]{},é\n ')),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
)


@given(st.lists(VALUES, max_size=5), st.integers(1, 9), st.booleans())
@settings(max_examples=200)
def test_elements_are_the_same_wherever_the_file_is_cut_into_chunks(rows: list[Any], chunk: int, escape: bool) -> None:
    file = io.BytesIO(json.dumps(rows, ensure_ascii=escape).encode())
    elements = list(split_array(lambda _: file.read(chunk), 10_000))
    assert [json.loads(element or b"") for element in elements] == rows


@given(st.binary() | st.text(st.sampled_from('[]{},"\\1 ')).map(str.encode))
def test_any_bytes_are_elements_or_a_broken_array(data: bytes) -> None:
    file = io.BytesIO(data)
    try:
        elements = list(split_array(file.read, 10))
    except BrokenArray:
        return
    assert all(element is None or len(element) <= 10 for element in elements)


def test_a_large_array_is_not_held_in_memory(tmp_path: Path) -> None:
    import resource

    path, row = tmp_path / "rows.json", json.dumps({"text": "x" * 999_000}).encode()
    with path.open("wb") as file:
        file.write(b"[" + row)
        for _ in range(200):
            file.write(b"," + row)
        file.write(b"]")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = read_rows(FileSource(name="mine", paths=[str(path)]), 1_000_000)
    assert sum(isinstance(row, Row) for row in found) == 201
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB
