"""The chat page in a real browser: what it sends, shows, keeps and never does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from storage.shards.lines import read_json_lines
from tasks.serve.pages import Feedback
from tests.tasks.serve.pages.driven import SHIFT, Driven

SHAPES = [(1280, 800, "light"), (1280, 800, "dark"), (360, 740, "light"), (360, 740, "dark")]


@pytest.mark.parametrize(("width", "height", "scheme"), SHAPES)
def test_it_sends_streams_and_stops(width: int, height: int, scheme: str, shared: Driven) -> None:
    chat = shared
    chat.fresh(width, height, scheme)
    dark = chat.run("getComputedStyle(document.body).backgroundColor") == "rgb(27, 27, 27)"
    assert dark is (scheme == "dark")
    chat.begin("slow question")
    early = chat.until(lambda: chat.run("document.querySelector('.answer .text').innerText"))
    assert len(early) < 2000, "the beginning is shown before the end is there"
    assert chat.run("document.querySelector('.answer').ariaBusy") == "true"
    chat.until(lambda: len(chat.run("document.querySelector('.answer .text').innerText")) > len(early))
    chat.press("Escape")
    part = chat.ended()
    assert part.startswith("la la")
    assert chat.note == "Stopped."
    chat.until(lambda: "slow question" in chat.server.left)
    chat.server.left.clear()
    assert "It ends in a lake or the sea." in chat.ask("markdown please")
    assert "12 prompt + 34 answer tokens" in chat.page.text
    assert "tokens/s" in chat.page.text
    assert chat.run("document.querySelector('.answer:last-child').ariaBusy") == "false"
    for element in ("html", "#scroll", "#history"):
        wide = "({scrollWidth, clientWidth}) => scrollWidth > clientWidth"
        assert not chat.run(f"({wide})(document.querySelector('{element}'))"), f"{element} scrolls sideways"
    low = "(() => { const {scrollHeight, scrollTop, clientHeight} = document.getElementById('scroll');"
    assert chat.run(f"{low} return scrollHeight - scrollTop - clientHeight < 80 }})()"), "the end is in view"
    chat.is_clean()


def test_a_request_has_the_conversation_and_what_was_set(chat: Driven) -> None:
    chat.click("Settings")
    values = {"system": "Be brief.", "temperature": "0.5", "top_p": "", "max_tokens": "99"}
    for name, value in values.items():
        chat.run(f"document.querySelector('[name={name}]').value = {value!r}")
    chat.click("Done")
    chat.run("document.getElementById('model').value = 'river-135m-old'")
    assert chat.ask("one") == "You said: one"
    chat.ask("two")
    first, second = chat.server.asked
    assert first == {
        "model": "river-135m-old",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
        "max_tokens": 99,
    }
    assert second["messages"] == [
        *first["messages"],
        {"role": "assistant", "content": "You said: one"},
        {"role": "user", "content": "two"},
    ]
    chat.open()
    chat.ask("three")
    assert chat.server.asked[-1]["temperature"] == 0.5, "settings are kept"
    assert len(chat.server.asked[-1]["messages"]) == 2, "a page begins a new chat"
    chat.is_clean()


def test_hostile_markdown_does_nothing(chat: Driven) -> None:
    text = chat.ask("hostile")
    assert "<img src=x onerror=" in text, "it is shown as text"
    assert chat.run("window.broken === undefined")
    bad = "script, img, svg, iframe, style, object, embed, form, input, link, meta, base, [onerror], [onclick], [style]"
    assert chat.run(f"document.querySelectorAll('.answer .text :is({bad})').length") == 0
    links = chat.run(
        "[...document.querySelectorAll('.answer .text a')].map(({href, rel, target}) => [href, rel, target])"
    )
    assert {tuple(rest) for _, *rest in links} == {("noopener noreferrer", "_blank")}
    assert all(href.startswith("https://evil.example/") for href, *_ in links)
    assert {"https://evil.example/page", "https://evil.example/pixel.png"} <= {href for href, *_ in links}
    chat.click("Copy code")
    assert chat.run("window.broken === undefined")
    chat.open()
    chat.click("hostile")
    assert "<img src=x onerror=" in chat.run("document.querySelector('.answer .text').innerText"), (
        "nor from the history"
    )
    assert chat.run("window.broken === undefined")
    chat.is_clean()


def test_a_line_of_a_megabyte_is_shown_while_the_page_still_works(chat: Driven) -> None:
    for rest in ("**a", "[a](", "<b>"):
        chat.ask(f"huge {rest}")
        length = chat.run("[...document.querySelectorAll('.answer .text')].at(-1).textContent.length")
        assert length == 1_000_000 // len(rest) * len(rest)
        chat.click("New chat")
    assert chat.ask("hello") == "You said: hello"
    kept = chat.run("[...document.querySelectorAll('#history li > :first-child')].map(each => each.textContent)")
    assert kept[:2] == ["hello", "huge <b>"], "the oldest chats go where there is no room"
    chat.is_clean()


@pytest.mark.parametrize(
    ("words", "note", "text"),
    [
        ("refuse this", "The prompt has 900 tokens, the context 512.", ""),
        ("busy now", "Too many requests. Try again in 7 s.", ""),
        ("crash now", "The server answered 502.", ""),
        ("fail later", "The engine has ended.", "You said:"),
        ("drop later", "The connection ended before the answer did.", "You said:"),
        ("cut it", "The answer reached the limit of tokens.", "You said: cut it"),
        ("police it", "The server's policy ended this answer.", "You said: police it"),
    ],
)
def test_every_end_but_the_usual_one_is_said_in_words(words: str, note: str, text: str, chat: Driven) -> None:
    assert chat.ask(words).startswith(text)
    assert chat.note == note
    assert chat.run("document.getElementById('said').textContent") == note, "a screen reader says it"
    chat.ask("next")
    told = [message["content"] for message in chat.server.asked[-1]["messages"]]
    assert (words in told) is bool(text), "a question without an answer isn't asked again"


def test_a_server_that_is_away_is_an_error_and_no_more(chat: Driven) -> None:
    chat.page.send(
        "Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0
    )
    chat.ask("hello")
    assert chat.note == "The server can't be reached."
    chat.connected(True)
    chat.click("Try again")
    assert chat.ended() == "You said: hello"


def test_it_is_used_by_the_keyboard_alone(chat: Driven) -> None:
    assert chat.focus == "question"
    chat.type("one")
    chat.press("Enter", SHIFT)
    chat.type("two")
    assert chat.server.asked == []
    chat.press("Enter")
    chat.ended()
    assert chat.server.asked[-1]["messages"][-1]["content"] == "one\ntwo"
    assert chat.focus == "question"
    chat.press("Enter")
    assert len(chat.server.asked) == 1, "nothing is not sent"
    seen = []
    for _ in range(30):
        chat.press("Tab", SHIFT)
        seen.append(chat.focus)
        visible = chat.run("getComputedStyle(document.activeElement).outlineStyle !== 'none'")
        assert visible or chat.run("document.activeElement === document.body")
        if chat.focus == "settings-button":
            break
    order = ["Bad answer", "Good answer", "Regenerate", "Copy", "clear", "new", "settings-button"]
    assert [name for name in seen if name in order] == [*order[:4], "Copy", *order[4:]]
    chat.press("Enter")
    assert chat.run("document.activeElement.name") == "system"
    chat.press("Escape")
    assert chat.run("document.querySelector('dialog[open]') === null")
    assert chat.focus == "settings-button", "the focus goes back"
    while chat.focus != "Good answer":
        chat.press("Tab")
    chat.press(" ")
    chat.until(lambda: chat.run("document.querySelector('.thumb.up').ariaPressed") == "true")
    chat.is_clean()


def test_fields_have_names_and_a_screen_reader_hears_the_answer_once(chat: Driven) -> None:
    chat.ask("markdown")
    nodes = chat.page.send("Accessibility.getFullAXTree")["nodes"]
    roles = ("button", "textbox", "link", "combobox", "spinbutton", "log", "navigation", "dialog")
    named = {
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if node.get("role", {}).get("value") in roles
    }
    assert {role for role, name in named if not name} == set()
    assert {("log", "Conversation"), ("textbox", "Question"), ("combobox", "Model"), ("button", "Good answer")} <= named
    assert chat.run("document.getElementById('log').ariaLive") == "polite"
    assert chat.run("document.querySelector('.below').ariaLive") == "off"


def test_answers_are_made_again_and_questions_edited_without_losing_any(chat: Driven) -> None:
    chat.ask("first")
    chat.ask("second")
    chat.click("Regenerate")
    chat.ended()
    assert len(chat.server.asked[-1]["messages"]) == 3
    assert "2 of 2" in chat.page.text
    chat.click("Earlier answer")
    assert "1 of 2" in chat.page.text
    chat.run("document.querySelector('.question button').click()")
    chat.until(lambda: chat.run("document.activeElement.closest('.better') !== null"))
    chat.run("document.activeElement.value = 'first, in other words'")
    chat.click("Ask")
    assert chat.ended() == "You said: first, in other words"
    assert chat.server.asked[-1]["messages"] == [{"role": "user", "content": "first, in other words"}]
    titles = "[...document.querySelectorAll('#history li > :first-child')].map(each => each.textContent)"
    assert chat.run(titles) == ["first, in other words", "first"]
    chat.click("first")
    assert "You said: second" in chat.page.text
    chat.is_clean()


def test_chats_stay_in_this_browser_until_they_are_deleted(chat: Driven) -> None:
    chat.ask("a secret")
    asked = len(chat.server.asked)
    chat.open()
    assert "You said" not in chat.page.text
    chat.click("a secret")
    assert "You said: a secret" in chat.page.text
    assert len(chat.server.asked) == asked
    chat.click("New chat")
    chat.ask("another")
    chat.click("Delete a secret")
    assert "a secret" in chat.run("JSON.stringify(localStorage)"), "the first click asks"
    chat.click("Delete a secret")
    assert "a secret" not in chat.run("JSON.stringify(localStorage)")
    assert "You said: another" in chat.page.text
    chat.click("Delete all chats")
    chat.click("Delete?")
    assert "another" not in chat.run("JSON.stringify(localStorage)")
    assert chat.run("document.querySelectorAll('#history li, .answer').length") == 0
    chat.is_clean()


@pytest.mark.parametrize("kept", ["{", "[]", "7", '[null, 7, {"turns": 5}]', '{"turns": []}'])
def test_a_damaged_history_is_no_history(kept: str, chat: Driven) -> None:
    for name in ("gristmill-chats", "gristmill-settings"):
        chat.run(f"localStorage.setItem({name!r}, {json.dumps(kept)})")
    chat.open()
    assert chat.ask("hello") == "You said: hello"
    chat.is_clean()


def test_a_key_is_asked_for_and_kept_until_the_tab_is_closed(chat: Driven) -> None:
    chat.server.key = "grist-secret"
    chat.open()
    chat.until(lambda: "This key isn't known." in chat.page.text)
    chat.type("wrong")
    chat.press("Enter")
    chat.until(lambda: chat.run("document.activeElement.name === 'key' && document.activeElement.value === ''"))
    chat.type(" grist-secret ")
    chat.press("Enter")
    chat.until(lambda: chat.run("document.getElementById('model').value") == "river-135m")
    assert chat.ask("hello") == "You said: hello"
    assert "grist-secret" not in chat.run("JSON.stringify(localStorage)")
    assert "grist-secret" in chat.run("JSON.stringify(sessionStorage)")
    chat.server.key = "another"
    chat.begin("again")
    chat.until(lambda: chat.run("document.querySelector('dialog[open]') !== null"))
    chat.press("Escape")
    assert chat.ended() == ""
    assert chat.note == "This key isn't known."


def test_thumbs_and_better_answers_are_kept_as_rows(chat: Driven) -> None:
    folder = chat.server.votes._folder
    for path in folder.iterdir():
        path.unlink()
    chat.ask("up")
    chat.click("Good answer")
    chat.until(lambda: chat.run("document.querySelector('.thumb.up').ariaPressed") == "true")
    chat.ask("down")
    chat.click("Bad answer")
    chat.click("Send", ".better")
    chat.ask("better")
    chat.click("Bad answer")
    chat.until(lambda: chat.run("document.activeElement.closest('.better') !== null"))
    chat.run("document.activeElement.value = 'No, this.'")
    chat.click("Send", ".better")
    chat.ask("vary")
    chat.click("Regenerate")
    best = chat.ended()
    chat.click("Best of these")
    chat.until(lambda: "Thank you for the vote." in chat.page.text)
    labelled, preferred = (list(read_json_lines(folder / f"{name}.jsonl")) for name in ("labelled", "preferences"))
    assert [(row["prompt"][-1]["content"], row["label"]) for row in labelled] == [("up", True), ("down", False)]
    assert len(labelled[1]["prompt"]) == 3, "with the conversation before it"
    row, between = preferred
    assert between["chosen"] == [{"role": "assistant", "content": best}]
    assert between["rejected"][0]["content"].startswith("Answer ")
    assert between["rejected"] != between["chosen"]
    assert row["chosen"] == [{"role": "assistant", "content": "No, this."}]
    assert row["rejected"] == [{"role": "assistant", "content": "You said: better"}]
    assert row["request_id"].startswith("request-")
    chat.open()
    chat.click("up")
    assert chat.run("document.querySelector('.thumb.up').disabled"), "an answer has one vote"
    chat.is_clean()


def test_a_vote_that_the_server_refuses_is_no_vote(
    chat: Driven, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat.server, "votes", Feedback(tmp_path, per_minute=1))
    chat.ask("hello")
    chat.click("Good answer")
    chat.until(lambda: (tmp_path / "labelled.jsonl").exists())
    chat.ask("more")
    chat.click("Bad answer")
    chat.click("Send", ".better")
    chat.until(lambda: chat.note.startswith("More than 1 votes a minute are refused: try again in "))
    pressed = "[...document.querySelectorAll('.thumb')].map(({ariaPressed, disabled}) => [ariaPressed, disabled])"
    assert chat.run(pressed) == [["true", True], ["false", True], ["false", False], ["false", False]]


def test_on_a_phone_the_chats_are_behind_a_button(shared: Driven) -> None:
    chat = shared
    chat.fresh(360, 740)
    chat.ask("hello")
    hidden = "getComputedStyle(document.getElementById('chats')).visibility"
    assert chat.run(hidden) == "hidden"
    chat.click("Chats")
    chat.until(lambda: chat.run(hidden) == "visible")
    assert chat.run("document.getElementById('menu').ariaExpanded") == "true"
    chat.press("Escape")
    chat.until(lambda: chat.run(hidden) == "hidden")
    assert chat.focus == "menu"
    chat.click("Chats")
    chat.click("New chat")
    chat.until(lambda: chat.run(hidden) == "hidden")
    features = [{"name": "prefers-reduced-motion", "value": "reduce"}]
    assert chat.run("getComputedStyle(document.getElementById('chats')).transitionDuration") != "0s"
    chat.page.send("Emulation.setEmulatedMedia", features=features)
    assert chat.run("getComputedStyle(document.getElementById('chats')).transitionDuration") == "0s"
    chat.is_clean()
