"""The status page in a real browser: whatever the server says, and that it says nothing any more."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tasks.serve.pages.driven import Driven
from tests.tasks.serve.pages.stand_in import STATUS

CELLS = "row => [...row.children].map(cell => cell.innerText)"
ROWS = f"Object.fromEntries([...document.querySelectorAll('.pairs tr')].map({CELLS}))"


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (360, "dark")])
def test_it_shows_all_that_the_server_says(width: int, scheme: str, shared: Driven) -> None:
    shared.server.status = STATUS
    shared.fresh(width, 740, scheme, "/status")
    shared.until(lambda: "p95" in shared.page.text)
    shown = shared.run(ROWS)
    assert shown["tokens per second"] == "413"
    assert shown["uptime"] == "26 h"
    assert shown["spend"] == "$1.2346"
    assert shown["429"] == "12"
    assert (shown["enabled"], shown["failing"], shown["lost"]) == ("yes", "no", "–")
    text = " ".join(shared.page.text.split())
    assert "river-135m ready yes queue 2" in text
    assert "river-135m: release ref finetune/export@3 digest sha256:5f2c9e0d" in text
    assert "old ready no" in text
    assert "first token 1,949 34 ms 81 ms 1.25 s" in text
    assert "token 0 4.2 ms 7.1 ms –" in text
    assert "email output mask 12" in text
    assert "<b>bob</b> 749 –" in text
    assert shared.run("document.querySelectorAll('main b').length") == 0
    assert shared.run("document.documentElement.scrollWidth <= innerWidth")
    shared.server.status = {"queue": 77}
    shared.until(lambda: shared.run(ROWS) == {"queue": "77"})
    shared.is_clean()


@pytest.mark.parametrize(
    "odd",
    [
        {},
        [],
        None,
        7,
        "text",
        {"a": None},
        {"a": {}},
        {"a": []},
        {"a": [1, {"b": 2}]},
        {"a": {"b": {"c": {"d": {"e": 1}}}}},
    ],
)
def test_odd_answers_are_shown_without_an_error(odd: Any, shared: Driven) -> None:
    shared.server.status = odd
    shared.fresh(path="/status")
    shared.until(lambda: shared.run("document.getElementById('when').textContent").startswith("Now"))
    shared.is_clean()


def test_a_server_that_asks_for_a_key_or_is_away_is_said(shared: Driven) -> None:
    shared.server.status = STATUS
    shared.fresh(path="/status")
    shared.server.key = "grist-secret"
    shared.open("/status")
    shared.until(lambda: "This key isn't known." in shared.page.text)
    shared.type("grist-secret")
    shared.press("Enter")
    shared.until(lambda: "finetune/export@3" in shared.page.text)
    shared.connected(False)
    shared.until(lambda: "The server can't be reached." in shared.page.text)
    assert "finetune/export@3" in shared.page.text, "the last answer stays"
    shared.connected(True)
    shared.until(lambda: "The server can't be reached." not in shared.page.text)
