"""`gristmill serve keys`: a key is shown once, listed with what it spent, and revoked by id, name or itself."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flows.commands.serve.keys import app
from storage.errors import ConfigError
from tasks.serve.access import Limits
from tasks.serve.access.keys import FORM
from tasks.serve.access.ledger import Request
from tasks.serve.access.quota import SECOND, Ask, Price
from tasks.serve.access.sqlite_ledger import SqliteLedger


def keys(state: Path, *words: str) -> str:
    return str(CliRunner().invoke(app, [*words, "--state", str(state)], catch_exceptions=False).output)


def listed(state: Path, *words: str) -> list[dict[str, Any]]:
    return list(json.loads(keys(state, "list", "--json", *words)))


def test_a_key_is_shown_once_and_listed_with_what_it_spent(tmp_path: Path) -> None:
    state, config = tmp_path / "state", tmp_path / "serve.yaml"
    config.write_text("limits: {budget_period: day}\n")
    made = keys(state, "make", "alice", "--expires", "30d", "--concurrent", "0", "--budget-usd", "2.5", "--model", "m")
    found = FORM.search(made)
    assert found is not None
    now = int(time.time() * SECOND)
    ledger, request = SqliteLedger(state), Request(1, found[1], now, "p")
    ledger.admit(request, Limits(), Ask(1, 1, Price(0, 0)))
    ledger.settle(request, 1234, 1_500_000_000)
    (row,) = listed(state, "--config", str(config))
    assert (row["id"], row["name"], row["state"], row["period"]) == (found[1], "alice", "active", "day")
    assert (row["tokens"], row["usd"]) == (1234, 1.5)
    assert row["limits"] == {"concurrent": None, "budget_usd": 2.5, "models": ["m"]}
    assert row["expires"] == time.strftime("%Y-%m-%d %H:%M", time.gmtime(now / SECOND + 30 * 86_400))
    assert row["used"] == time.strftime("%Y-%m-%d %H:%M", time.gmtime(now / SECOND))
    table = keys(state, "list")
    assert re.search(r"alice\s+active", table)
    assert "1,234" in table
    assert found[2] not in table + json.dumps(row)


def test_a_key_is_revoked_by_its_id_its_name_or_itself(tmp_path: Path) -> None:
    made = [json.loads(keys(tmp_path / "s", "make", name, "--json")) for name in ("a", "b", "c", "d")]
    for which in (made[0]["id"], "b", made[2]["key"]):
        assert made[2]["key"] not in keys(tmp_path / "s", "revoke", which)
    assert [row["state"] for row in listed(tmp_path / "s")] == ["revoked"] * 3 + ["active"]
    for which in ("b", "nobody"):
        with pytest.raises(ConfigError, match="No active key has"):
            keys(tmp_path / "s", "revoke", which)
    keys(tmp_path / "s", "make", made[3]["id"])
    with pytest.raises(ConfigError, match="Several active keys have"):
        keys(tmp_path / "s", "revoke", made[3]["id"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["make", ""], "can't be the name"),
        (["make", "a\x1b[31m"], "can't be the name"),
        (["make", "a", "--expires", "yesterday"], "is not a time"),
        (["make", "a", "--expires", "2020-01-01"], "is in the past"),
        (["make", "a", "--expires", "99999999999d"], "is not a time"),
        (["make", "a", "--budget-period", "week"], "budget_period"),
        (["list"], "holds no keys"),
        (["list", "--config", "absent.yaml"], "is not a file"),
    ],
)
def test_mistakes_are_sentences_and_leave_no_folder_behind(tmp_path: Path, words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        keys(tmp_path / "s", *words)
    assert not (tmp_path / "s").exists()


def test_a_mistake_in_the_servers_limits_is_named(tmp_path: Path) -> None:
    config = tmp_path / "serve.yaml"
    for text in ("limits: {concurrent: -1}", "limits: {ledger: 'redis://:secret@host'}"):
        config.write_text(text)
        with pytest.raises(ConfigError, match=r"limits\.(concurrent|ledger) (= |holds)") as error:
            keys(tmp_path / "s", "list", "--config", str(config))
        assert "secret" not in str(error.value)
    config.write_text("- a list")
    with pytest.raises(ConfigError, match="is not a mapping"):
        keys(tmp_path / "s", "list", "--config", str(config))
