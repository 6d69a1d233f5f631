"""The chat page with a real server, in a real browser: the page's own tests have a scripted one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from storage.shards.lines import read_json_lines
from tasks.download.pairs import labelled
from tests import browser
from tests.tasks.serve.clients.conftest import SAID, Clients
from tests.tasks.serve.pages.driven import ANSWER, Driven

SHAPES = [(1280, 800, "light"), (1280, 800, "dark"), (360, 740, "light"), (360, 740, "dark")]
pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def driven(clients: Clients, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driven]:
    """A browser beside the server."""
    nothing: Any = SimpleNamespace(key=None, asked=[])
    with browser.page(tmp_path_factory.mktemp("page")) as page:
        yield Driven(page, cast("Any", nothing), clients.server.url, "/status")


def limit(chat: Driven, tokens: int) -> None:
    """Set the longest answer, as a person does."""
    chat.run("document.getElementById('settings-button').click()")
    chat.run(f"document.querySelector('[name=max_tokens]').value = {tokens}")
    chat.click("Done")


@pytest.mark.parametrize(("width", "height", "scheme"), SHAPES)
def test_it_sends_streams_stops_and_counts(
    width: int, height: int, scheme: str, driven: Driven, clients: Clients, tmp_path: Path
) -> None:
    chat = driven
    chat.fresh(width, height, scheme)
    chat.run("document.getElementById('model').value = 'tools'")
    chat.begin("Where does the fox live?")
    chat.until(lambda: len(chat.run("document.querySelector('.answer .text').textContent")) > 20)
    assert chat.run("document.querySelector('.answer').ariaBusy") == "true"
    assert clients.engine_running() == 1
    chat.page.picture(tmp_path / "streaming.png")
    chat.click("Stop")
    assert clients.idle(within=1)
    chat.ended()
    assert chat.note == "Stopped."
    assert chat.run(ANSWER).startswith(SAID.strip())
    limit(chat, 12)
    chat.ask("And the hen?")
    assert chat.note == "The answer reached the limit of tokens."
    shown = re.search(r"(\d+) prompt \+ (\d+) answer tokens", chat.page.text)
    assert shown is not None
    chat.until(lambda: clients.server.audit()[-1]["finish"] == "length")
    line = clients.server.audit()[-1]
    assert (int(shown[1]), int(shown[2])) == (line["prompt_tokens"], line["completion_tokens"])
    chat.page.picture(tmp_path / "answered.png")
    chat.is_clean()


def test_a_thumb_is_a_row_that_download_reads(driven: Driven, clients: Clients) -> None:
    chat = driven
    chat.fresh()
    limit(chat, 12)
    chat.ask("Is this good?")
    chat.click("Good answer")
    chat.until(lambda: chat.run("document.querySelector('.thumb.up').ariaPressed") == "true")
    chat.until(lambda: "Thank you for the vote." in chat.page.text)
    *_, row = read_json_lines(clients.server.state / "feedback" / "labelled.jsonl")
    assert labelled(row, "feedback").pair["label"] is True
    assert row["prompt"] == [{"role": "user", "content": "Is this good?"}]
    chat.until(lambda: row["request_id"] in [line["id"] for line in clients.server.audit()])
    line = next(line for line in clients.server.audit() if line["id"] == row["request_id"])
    assert (row["release"], row["key"], row["model"]) == (line["release"], line["key"], line["model"])
    chat.is_clean()


def test_a_wrong_key_is_asked_for_again(driven: Driven, clients: Clients) -> None:
    chat, right = driven, clients.key("page")
    chat.fresh()
    limit(chat, 4)
    chat.run("document.getElementById('key-button').click()")
    chat.until(lambda: chat.run("document.activeElement.name === 'key'"))
    chat.type(f"gsk-{'a' * 8}-{'b' * 43}")
    chat.press("Enter")
    chat.begin("Where?")
    chat.until(lambda: "This key isn't valid." in chat.page.text)
    chat.type(right["key"])
    chat.press("Enter")
    chat.ended()
    assert "answer tokens" in chat.page.text
    chat.until(lambda: clients.server.audit()[-1]["key"] == right["id"])
    chat.page.rest(0.1)
    assert all("401" in said for said in chat.page.said), "the browser says so, the page nothing"


def test_the_status_page_shows_each_model(driven: Driven, clients: Clients) -> None:
    driven.fresh(path="/status")
    for name in ("plain", "polite", "tools", "both"):
        driven.page.shows(name)
    driven.is_clean()
