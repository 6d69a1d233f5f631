"""The habits that make our English hard to read stay rare, and every cell of the table is counted."""

from __future__ import annotations

from pathlib import Path

from tests.docs.english import HABITS, KINDS, counts, of_module

MOST = 1.0  # of any habit in a thousand words of a kind
HAS_NO = 2.0  # of messages: "the model has no tokenizer" is as short as it gets
SEMICOLONS = {"page": 1.0, "description": 2.0, "docstring": 2.0, "comment": 3.0, "message": 5.0}


def test_no_habit_comes_back() -> None:
    words, habits = counts()
    shares = {(name, kind): 1000 * habits[name][kind] / words[kind] for name in HABITS for kind in KINDS}
    limits = {(name, kind): SEMICOLONS[kind] if name == "semicolon" else MOST for name, kind in shares}
    limits["has not", "message"] = HAS_NO
    assert {cell: round(share, 2) for cell, share in shares.items() if share > limits[cell]} == {}


def test_each_piece_of_prose_is_counted_once_as_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(
        '"""A module."""\n\nFIELD = Field(1, description="how many there are")  # why\n'
        'ERROR = f"{name} is not a file."\n'
    )
    assert sorted((piece.kind, piece.text) for piece in of_module(tmp_path / "module.py")) == [
        ("comment", "why"),
        ("description", "how many there are"),
        ("docstring", "A module."),
        ("message", "X is not a file."),
    ]
