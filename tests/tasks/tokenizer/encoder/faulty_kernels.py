"""Faulty tokenizer kernels, to test that faults are noticed."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.tokenizer.encoder import tables


def exchange_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make our encoder exchange the letters L and T."""
    sound = tables.make_tables

    def faulty(settings: dict[str, Any]) -> tables.Tables:
        made = sound(settings)
        made.symbols[[ord("L"), ord("T")]] = made.symbols[[ord("T"), ord("L")]]
        return made

    monkeypatch.setattr(tables, "make_tables", faulty)
