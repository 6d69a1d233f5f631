"""Kernels of the tokenizer that are wrong, for tests of what happens then."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.tokenizer.encoder import tables


def exchange_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have our encoder take L for T and T for L."""
    sound = tables.make_tables

    def faulty(settings: dict[str, Any]) -> tables.Tables:
        made = sound(settings)
        made.symbols[[ord("L"), ord("T")]] = made.symbols[[ord("T"), ord("L")]]
        return made

    monkeypatch.setattr(tables, "make_tables", faulty)
