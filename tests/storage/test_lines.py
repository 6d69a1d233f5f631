"""JSON Lines: what is read can be written again."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.shards.lines import read_json_lines, write_json_lines


def test_what_is_written_is_read(tmp_path: Path) -> None:
    rows = ["\u2028", {"é": "\N{GRINNING FACE}"}, [1.5, None]]
    write_json_lines(tmp_path / "rows", rows)
    assert list(read_json_lines(tmp_path / "rows")) == rows
    (tmp_path / "rows").write_text('"\\ud83d\\ude00"\n')
    assert list(read_json_lines(tmp_path / "rows")) == ["\N{GRINNING FACE}"]


@pytest.mark.parametrize(
    "line",
    [b'{"id": "\\ud800"}', b'["\\uDC00"]', b'{"\xed\xa0\x80": 1}', b'"\xff"', b'{"id": }', b"[" * 100_000],
    ids=range(6),
)
def test_what_could_not_be_written_is_refused_with_its_line(line: bytes, tmp_path: Path) -> None:
    (tmp_path / "rows").write_bytes(b'"sound"\n' + line + b"\n")
    with pytest.raises(ValueError, match=r"^line 2: "):
        list(read_json_lines(tmp_path / "rows"))
