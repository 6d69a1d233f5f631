"""An answer that grows: nothing that the policy masks leaves the server however the answer is cut, and other text is
held back for a word."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.serve.guards import Finding
from tasks.serve.guards.config import OutputRules
from tasks.serve.guards.personal import PersonalData
from tests.tasks.serve.guards.ready import JWT, KEY, LINE, PEM, PLANTED, chunked, cut, guards, outcome, through

PROSE = "the river flows past a town at noon with Anna's well-known (old) bridge."
WORDS = st.lists(st.sampled_from(PROSE.split()), min_size=2, max_size=4).map(" ".join)
BITS = (
    *PLANTED,
    *("jane", "at", "dot", "com", "[at]", "@", "12", "1994", "BE68", "-u", "curl", "-----BEGIN", LINE, "-----", "eyJ"),
    *("token:", "\u200b", "e\u0301", "\u0301" * 40, "\ud83d", "\ude00", "😀", "０１２", "（", "\u00a0", "—", "<", '"'),
    *("写信", "，", "x" * 300, "7" * 40, "a.a@" * 90, "(+353 or", "is my phone", "red", "red fox", "\0", "+", "(", ")"),
)
ANY = st.lists(st.tuples(st.sampled_from(BITS), st.sampled_from(["", " ", " ", " ", "\n", ". "])), max_size=12).map(
    lambda pairs: "".join(bit + gap for bit, gap in pairs)
)
POLICY = {
    "output": {"random": "mask"},
    "lists": {"mine": {"words": ["red fox", "c++"], "patterns": ["gr[ae]y [a-z]{3,9}"]}},
}


@pytest.mark.parametrize("size", [1, 2, 3, 5, 17, 100_000])
@pytest.mark.parametrize("said", PLANTED)
def test_what_is_planted_does_not_leave_at_any_chunk_size(said: str, size: int) -> None:
    assert outcome(None, cut(f"Well, {said} is what I know.", size))[0] == f"Well, {PLANTED[said]} is what I know."
    assert outcome(None, cut(said, size))[0] == PLANTED[said]


@settings(deadline=None, max_examples=60)
@given(
    chunked(
        st.lists(st.tuples(WORDS, st.sampled_from([*PLANTED])), max_size=5).map(
            lambda rows: " ".join(f"{words} then {said} now" for words, said in rows)
        )
    )
)
def test_an_answer_in_chunks_is_masked_as_a_whole(answer: tuple[str, list[str]]) -> None:
    text, chunks = answer
    expected = text
    for said in sorted(PLANTED, key=len, reverse=True):
        expected = expected.replace(f" {said} ", f" {PLANTED[said]} ")
    assert outcome(None, chunks)[0] == expected


@settings(deadline=None, max_examples=150)
@given(chunked(ANY))
def test_chunks_make_no_difference(answer: tuple[str, list[str]]) -> None:
    text, chunks = answer
    assert outcome(POLICY, chunks) == outcome(POLICY, [text])


@settings(deadline=None, max_examples=100)
@given(chunked(st.text(max_size=60)))
def test_text_without_findings_arrives_as_it_is(answer: tuple[str, list[str]]) -> None:
    text, chunks = answer
    released, found, _ = outcome(None, chunks)
    assert found or released == text


@settings(deadline=None, max_examples=60)
@given(ANY)
def test_what_the_filter_finds_in_the_whole_text_is_not_in_what_was_released(text: str) -> None:
    text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    released = outcome(None, cut(text, 4))[0]
    for mark in PersonalData(OutputRules()).marks(text):
        value = text[mark.start : mark.end]
        assert mark.action == "allow" or released.count(value) < text.count(value)


def test_prose_waits_for_the_end_of_its_word_only() -> None:
    guard = guards().output()
    said = "A river is a body of water, which flows downhill: into a lake or (mostly) another river. It's old."
    sent = 0
    for place, sign in enumerate(said):
        sent += len(guard.feed(sign))
        waiting = said[sent : place + 1]
        assert waiting.count(" ") <= (3 if " at " in waiting else 1), waiting
    assert through(guards().output(), [said]) == said


def test_text_that_only_looks_like_a_finding_goes_on_when_it_can_be_none() -> None:
    guard = guards().output()
    assert guard.feed("In 1994 t") == "In 1994 "
    assert guard.feed("here were 12 gr") == "there were 12 "
    assert guard.feed("eat jane at") == "great "
    assert guard.feed("hletes at the ") == "jane "
    assert guard.feed("do") == ""
    assert guard.feed("me ") == "athletes at the "
    assert guard.finish() == "dome "


def test_nothing_follows_a_refused_finding() -> None:
    policy = {"output": {"kinds": {"CREDIT_CARD": "refuse"}}}
    for size in (1, 4, 1000):
        released, found, refused = outcome(
            policy, cut("Ask jane.doe@corp-mail.com about 4539 1488 0343 6467 and more.", size)
        )
        assert released == "Ask <EMAIL_ADDRESS> about "
        assert refused == Finding("personal.CREDIT_CARD", "refuse", "output")
        assert refused in found
    more = "more words " * 2000
    guard = guards(policy).output()
    assert guard.feed(f"It is 4539 1488 0343 6467, {more}") == "It is "
    assert guard.feed(more) + guard.finish() == ""


def test_findings_are_counted_and_hold_no_text() -> None:
    _, found, refused = outcome(None, [f"{KEY} and {KEY}, from 93.184.216.34."])
    assert refused is None
    assert found == [
        Finding("personal.IP_ADDRESS", "allow", "output", 1),
        Finding("secrets.API_KEY", "mask", "output", 2),
    ]
    assert KEY not in repr(found)


def test_two_answers_at_once_do_not_see_each_other() -> None:
    said = [f"{left} and {right}" for left, right in zip([*PLANTED], [*PLANTED][::-1], strict=True)]
    alone = [outcome(None, [text]) for text in said]
    open_guards = [guards().output() for _ in said]
    released = [""] * len(said)
    for place in range(max(map(len, said))):
        for number, (guard, text) in enumerate(zip(open_guards, said, strict=True)):
            released[number] += guard.feed(text[place : place + 1])
    released = [text + guard.finish() for text, guard in zip(released, open_guards, strict=True)]
    assert [
        (text, sorted(guard.findings, key=str), guard.refused)
        for text, guard in zip(released, open_guards, strict=True)
    ] == alone


def test_halves_of_a_character_meet_across_chunks_and_lone_ones_are_replaced() -> None:
    assert outcome(None, ["a \ud83d", "\ude00 b \ud83d", "c \ude00", "\ud83d"])[0] == "a 😀 b \ufffdc \ufffd\ufffd"


def test_a_private_key_is_dropped_up_to_its_end() -> None:
    for key in (PEM, PEM.replace("\n", "\\n"), PEM.replace("RSA ", ""), PEM[: PEM.index("abcd==")].strip()):
        released = outcome(None, cut(f"Key:\n{key}\nThat is it, and there is nothing more to say.", 3))[0]
        assert LINE[:20] not in released
        assert "That is it, and there is nothing more to say." in released
    mentioned = "A file begins with -----BEGIN PRIVATE KEY----- and ends with -----END PRIVATE KEY-----, as you know."
    assert outcome(None, cut(mentioned, 4))[0] == mentioned


def test_a_token_longer_than_any_window_is_dropped_to_its_end() -> None:
    head, payload, sign = JWT.split(".")
    token = f"{head}.{payload * 60}.{sign}"
    assert outcome(None, cut(f"It is {token} as said.", 4))[0] == "It is <JSON_WEB_TOKEN> as said."
    assigned = "api_key=" + "q8Zr2LmX0vTb5KpY7sNd" * 60
    assert outcome(None, cut(f"Set {assigned} and go.", 4))[0] == "Set api_key=<API_KEY> and go."
