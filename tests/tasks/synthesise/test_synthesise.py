"""Documents that a model writes: which are asked about, what becomes of answers, and that nothing is paid for twice."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from pydantic import ValidationError

from storage.errors import ConfigError, EmptyOutput, SourceError
from storage.shards.documents import Document, document_id, read_documents, shard_name
from tasks.endpoint.client import Completion
from tasks.synthesise import synthesise
from tasks.synthesise.choose import Chosen, prompts_of, requests_of
from tasks.synthesise.judge import document_in
from tasks.synthesise.prompts import OURS, excerpt_of, wrong_with
from tests.tasks.endpoint.completions import Body, Said, serve
from tests.tasks.synthesise.runs import (
    SHORTEN,
    TEXT,
    config_of,
    corpus,
    document,
    made_of,
    reasons,
    run,
    runtime,
    store_run,
)

SAYS = "It says in words of its own that a mill stood there once, and that people came."


def asked(body: Body) -> str:
    return str(body["messages"][0]["content"])


def rewrite(body: Body) -> Said:
    """An answer that depends on all of the request."""
    return Said(f"New words, {document_id(json.dumps(body, sort_keys=True))}, in place of the old ones.")


def test_documents_are_added_with_what_they_were_made_from(tmp_path: Path) -> None:
    about = {"url": "https://example.org/a", "license": "MIT", "title": "A {mill}", "secret": 1}
    braces = Document.new("A text with {braces}, {0} and {text}. " * 9, "code", **about)
    documents = corpus(tmp_path / "in", [document(1), braces], [document(2)])
    prompts = [{"name": "a", "text": "{{title}} {title}: {text}"}, {"name": "b", "text": 'B {"x": {"y": 1}} {text}'}]
    with serve(rewrite) as server:
        how = runtime(server.url, price={"input": 1e6, "output": 2e6})
        out = run(tmp_path / "out", documents, config_of(*prompts), how)
    made = made_of(out.path)
    assert len(made) == len(server.asked) == 6
    assert [one.source for one in made] == ["synthetic/a", "synthetic/b"] * 3
    sent = {asked(body) for body in server.asked}
    assert f"{{title}} A {{mill}}: {braces.text}" in sent
    assert f'B {{"x": {{"y": 1}}}} {braces.text}' in sent
    known = {"synthetic": True, "model": "m", "prompt": "a", "made_from": braces.id}
    assert json.loads(made[2].metadata) == known | {name: about[name] for name in ("url", "license", "title")}
    for number in range(2):
        kept, before = (folder / shard_name(number) for folder in (out.path / "documents", documents.folder))
        assert kept.samefile(before), "shards that are read stay as they are"
    assert out.counts["documents"] == {"in": 9, "kept": 9, "removed": {}, "quarantined": 0}
    assert out.counts["summary"] == "3 documents, and 6 made of 6 answers by m"
    assert (out.facts["requests"], out.facts["cost"]) == (6, 6 * 10 + 6 * 5 * 2)
    rows = out.counts["tables"]["Documents by licence"]
    assert rows[0] == {"source": "synthetic/a", "licence": "MIT", "documents": 1}
    assert len({body["seed"] for body in server.asked}) == 6


FATES: dict[str, Said | None] = {
    "": None,
    "refused_by_server": Said(status=400, content=b"too long"),
    "empty_answer": Said("  \n"),
    "unfinished_answer": Said("It goes on and", finish_reason="length"),
    "damaged_answer": Said("A mill\0 stood there."),
    "model_refuses": Said("I'm sorry, but I can't help with that text."),
    "copy_of_source": Said((TEXT.format(number=6) * 3).upper()),
    "repeated_answer": Said(SAYS),
}
ODD = {
    "invalid UTF-8": json.dumps({"choices": [{"message": {"content": "A mill @ here."}}]})
    .encode()
    .replace(b"@", b"\xff"),
    "half a character": b'{"choices": [{"message": {"content": "A mill \\ud83d here, ' + SAYS.encode() + b'"}}]}',
    "a key of another": b'{"choices": [{"message": {"content": "'
    + b"0f" * 32
    + b'"}}], "asked": "'
    + b"0f" * 32
    + b'"}',
    "parts": b'{"choices": [{"message": {"content": [{"type": "text", "text": "Parts of it."}]}}]}',
    "very long": json.dumps({"choices": [{"message": {"content": "word " * 20_000}}]}).encode(),
}


def test_each_answer_has_a_fate(tmp_path: Path) -> None:
    """Whatever a server says of one document, the others get theirs."""
    says = [
        Said(f"```text\n{SAYS}\n```"),
        *[one for one in FATES.values() if one],
        *(Said(content=one) for one in ODD.values()),
    ]
    failing = [Said(content=b"<html>"), Said(content=b'{"choices": []}'), Said(content=b'{"a": 1}')]
    failing.append(Said(status=429, content=b"", headers={"Retry-After": "0"}))

    def answer(body: Body) -> Said:
        return failing.pop() if failing else says[int(asked(body).split()[2])]

    documents = [document(number) for number in range(len(says))]
    documents.append(Document.new(documents[0].text, "other"))
    read = corpus(tmp_path / "in", documents[:4], documents[4:])
    with serve(answer) as server:
        out = run(tmp_path / "out", read, config_of(max_failed_share=0.9, max_new_tokens=2000), runtime(server.url))
    assert out.facts["requests_repeated"] == 4
    expected = dict(zip((one.id for one in documents), FATES, strict=False))
    expected |= {one.id: "damaged_answer" for one in documents[len(FATES) : len(FATES) + 2]}
    expected[documents[-1].id] = "repeated_request"
    expected[documents[-2].id] = "unfinished_answer"
    assert reasons(out.path) == {identity: reason for identity, reason in expected.items() if reason}
    assert out.counts["documents"]["removed"]["repeated_request"] == 1
    assert [one.text for one in made_of(out.path)] == [SAYS, "0f" * 32, "Parts of it."]
    given = len(server.asked) - out.facts["requests_repeated"]
    assert (out.facts["requests"], out.facts["requests_refused"]) == (given, 1)
    assert out.counts["answers"] == given - 1, "a request that was refused or sent already has none"
    assert out.counts["tables"]["Answers by prompt"][0]["answers"] == given - 1
    assert len(list((out.path / "ledger").glob("*"))) == 3


@pytest.mark.parametrize(
    ("said", "text", "reason"),
    [
        (f"Here is the rewritten text:\n\n{SAYS}", SAYS, ""),
        (f"Sure! Here's a summary of the text:\n{SAYS}", SAYS, ""),
        (f"**Here is it**: {SAYS}", f"**Here is it**: {SAYS}", ""),
        (f"Here are the facts: {SAYS}", f"Here are the facts: {SAYS}", ""),
        (f"<think>\nHm.\n</think>\n\n{SAYS}", SAYS, ""),
        (f"<think>\nHm. {SAYS}", f"<think>\nHm. {SAYS}", "unfinished_answer"),
        (f"```\n{SAYS}\n```", SAYS, ""),
        (f"```\na\n```\n{SAYS}\n```\nb\n```", f"```\na\n```\n{SAYS}\n```\nb\n```", ""),
        ("```python\nprint()\n```", "```python\nprint()\n```", ""),
        ("I can't believe how tall the mill is, said the miller.", None, ""),
        ("I cannot fulfill this request.", None, "model_refuses"),
        ("As an AI language model, I have no mill.", None, "model_refuses"),
        ("As an AI made by a company, I have no mill.", None, "model_refuses"),
        ("As an AI researcher, she wrote of mills.", None, ""),
        ("As an aid to millers, wheels were built.", None, ""),
        ("Unfortunately, I am not able to do so.", None, "model_refuses"),
        ("Sorry, I can’t do that.", None, "model_refuses"),
        ("Sorry tales are told of the mill.", None, ""),
        ("A tab\tand a line\r\nare fine", None, ""),
        ("", None, "empty_answer"),
    ],
)
def test_what_models_put_around_a_text_is_taken_off_where_that_is_safe(
    said: str, text: str | None, reason: str
) -> None:
    given = document_in(Completion(said, finished=True, tokens=1), document(1).text)
    assert given == (said if text is None else text, reason)


def chosen_of(folder: Path, numbers: range, **config: Any) -> set[str]:
    documents = corpus(folder, [document(number) for number in numbers])
    chosen = Chosen(config_of(**config), documents.files("*.parquet"))
    return {one.document.id for one in requests_of(chosen, prompts_of(chosen.config), 0)}


def test_documents_are_chosen_by_hash(tmp_path: Path) -> None:
    few, more = (chosen_of(tmp_path, numbers, share=0.3) for numbers in (range(100), range(130)))
    assert few < more
    assert 10 < len(few) < 60
    sizes = [chosen_of(tmp_path, range(100), limit=limit) for limit in (5, 20, 1000)]
    assert [len(one) for one in sizes] == [5, 20, 100]
    assert sizes[0] < sizes[1]
    grown = chosen_of(tmp_path, range(101), limit=20)
    assert len(sizes[1] - grown) <= 1
    assert chosen_of(tmp_path, range(100), limit=20, share=0.3) <= few
    assert not chosen_of(tmp_path, range(9), characters={"min": 400})
    assert not chosen_of(tmp_path, range(9), characters={"min": 1, "max": 200})
    assert not chosen_of(tmp_path, range(9), sources=["other"])
    asked_about = chosen_of(tmp_path, range(100), prompts=[{**SHORTEN, "share": 0.3}])
    assert 10 < len(asked_about) < 60
    assert asked_about != few


def test_long_documents_are_cut_where_they_may_be() -> None:
    assert excerpt_of("short", 100) == "short"
    assert excerpt_of("One.\n\nThree four five six", 20) == "One.\n\nThree four"
    assert excerpt_of("One two three.\n\nThree four five six", 20) == "One two three."
    assert excerpt_of("He said: “Go on.” Then he went away", 24) == "He said: “Go on.”"
    assert excerpt_of("これは文です。これも文です。", 10) == "これは文です。"
    assert excerpt_of("x" * 50, 20) == "x" * 20
    assert all(not wrong_with(prompt) and prompt.endswith("{text}") for prompt in OURS.values())


def test_a_changed_run_pays_for_what_is_new(tmp_path: Path) -> None:
    first = [document(number) for number in range(6)]
    documents = corpus(tmp_path / "a", first)
    grown = corpus(tmp_path / "b", first, [document(6)])
    (tmp_path / "prompt.txt").write_text("Tell: {text}")
    told = {"name": "tell", "file": str(tmp_path / "prompt.txt")}
    store = tmp_path / "store"
    with serve(rewrite) as server:
        how = runtime(server.url)
        steps = [
            (documents, config_of(), 6),
            (grown, config_of(), 1),
            (grown, config_of(SHORTEN, told), 7),
            (documents, config_of(told, limit=3, max_failed_share=0.1), 0),
            (documents, config_of(temperature=0.1), 6),
            (documents, config_of(model="other", fields={"top_k": 3}), 6),
        ]
        for read, config, new in steps:
            before = len(server.asked)
            made, stored = store_run(store, read, config, how)
            assert (len(server.asked) - before, stored) == (new, False)
            assert made.manifest is not None
            assert made.manifest.facts["requests"] == new
            assert made.manifest.facts["answers_taken"] + new == made.manifest.counts["answers"]
        before = len(server.asked)
        moved = runtime(server.url.replace("127.0.0.1", "localhost"), price={"input": 3})
        assert store_run(store, documents, config_of(), moved)[1], "neither the address nor the price is in the key"
        fresh, _ = store_run(tmp_path / "fresh", grown, config_of(), how)
        assert fresh.digest == store_run(store, grown, config_of(), how)[0].digest
        assert len(server.asked) == before + 7
        (tmp_path / "prompt.txt").write_text("Say: {text}")
        store_run(store, documents, config_of(told), how)
        assert len(server.asked) == before + 13


def test_a_killed_run_and_a_dead_server_cost_nothing_twice(tmp_path: Path) -> None:
    numbers = range(30)
    shards = [[document(number) for number in part] for part in (numbers[:10], numbers[10:20], numbers[20:])]
    documents = corpus(tmp_path / "in", *shards)
    enough = Event()
    left = [14]

    def slowly(body: Body) -> Said:
        left[0] -= 1
        if left[0] == 0:
            enough.set()
        return rewrite(body) if left[0] > 0 else Said(**{**rewrite(body).__dict__, "delay": 60.0})

    store = tmp_path / "store"
    with serve(slowly) as server:
        command = [sys.executable, "-m", "tests.tasks.synthesise.runs", str(store), str(documents.folder), server.url]
        with subprocess.Popen(command) as process:
            assert enough.wait(60)
            time.sleep(0.2)
            process.kill()
        answered = {asked(body) for body in server.asked[:13]}
    with serve(lambda body: rewrite(body) if asked(body) in answered else Said(status=503, content=b"gone")) as server:
        with pytest.raises(SourceError, match=r"Answers so far are kept.* It was asked about [0-9a-f]{32}: if only"):
            store_run(store, documents, config_of(), runtime(server.url, endpoint={"retries": 1}))
        assert not {asked(body) for body in server.asked} & answered, "what was answered is not asked again"
    with serve(rewrite) as server:
        grown = corpus(tmp_path / "grown", *shards, [document(99)])
        made, _ = store_run(store, grown, config_of(), runtime(server.url))
        assert len(server.asked) == 31 - 13, "answers of an unfinished artifact are taken too"
        made, _ = store_run(store, documents, config_of(), runtime(server.url))
        assert len(server.asked) == 31 - 13
        fresh, _ = store_run(tmp_path / "fresh", documents, config_of(), runtime(server.url))
    assert made.digest == fresh.digest
    assert [read_documents(path) for path in made.files("documents/*.parquet")]


def test_a_server_that_refuses_or_a_model_that_repeats_itself_ends_the_run(tmp_path: Path) -> None:
    documents = corpus(tmp_path / "in", [document(number) for number in range(120)])
    store = tmp_path / "store"
    with serve(lambda body: Said(status=401, content=b"no key")) as server:
        with pytest.raises(SourceError, match="answered 401: no key") as refused:
            store_run(store, documents, config_of(), runtime(server.url))
        assert "runtime.synthesise" in refused.value.remedy
        assert len(server.asked) <= 3
    with serve(lambda body: Said(SAYS)) as server:
        with pytest.raises(
            EmptyOutput, match=r"99 of 100 answers of m are no documents \(99 repeated_answer\)"
        ) as same:
            store_run(store, documents, config_of(), runtime(server.url))
        assert "max_failed_share" in same.value.remedy
        before = len(server.asked)
        assert before < 150
        made, _ = store_run(store, documents, config_of(max_failed_share=1), runtime(server.url))
        assert len(server.asked) == 120, "the answers of the run that failed are kept"
    assert len(made_of(made.path)) == 1
    with pytest.raises(EmptyOutput, match="chooses none of 120 documents"):
        run(tmp_path / "none", documents, config_of(characters={"min": 9000}), runtime(server.url))
    with pytest.raises(ConfigError, match=r"runtime\.synthesise\.url is missing"):
        synthesise.check_here(config_of(), runtime(None))  # type: ignore[arg-type]


def test_an_error_is_named_though_other_requests_wait_for_their_turn(tmp_path: Path) -> None:
    documents = corpus(tmp_path / "in", [document(number) for number in range(120)])

    def answer(body: Body) -> Said:
        last = asked(body).split()[2] == "119"
        return Said(status=401, content=b"no", delay=0.5) if last else Said(status=503, content=b"busy")

    how = {"concurrent_requests": 120, "backoff_seconds": 60}
    with serve(answer) as server, pytest.raises(SourceError, match="answered 401"):
        run(tmp_path / "out", documents, config_of(), runtime(server.url, endpoint=how))


def test_a_server_that_counts_no_tokens_is_not_free(tmp_path: Path) -> None:
    documents = corpus(tmp_path / "in", [document(1)])
    said = Said(content=json.dumps({"choices": [{"message": {"content": SAYS}}]}).encode())
    with serve(lambda body: said) as server:
        out = run(tmp_path / "out", documents, config_of(), runtime(server.url, price={"input": 1, "output": 1}))
    assert out.facts["requests"] == 1
    assert "cost" not in out.facts


@pytest.mark.parametrize(
    ("prompts", "more", "message"),
    [
        ([{"name": "a", "text": "none"}], {}, r"has \{text\} 0 times"),
        ([{"name": "a", "text": "{text} {text}"}], {}, r"has \{text\} 2 times"),
        ([{"name": "a", "text": "{text} {name}"}], {}, r"has \{name\}, but a document has .* write \{\{name\}\}"),
        ([{"name": "a"}], {}, "none of ours"),
        ([{"name": "a", "text": "{text}", "file": "a.txt"}], {}, "a file and a text"),
        ([{"name": "rewrite"}, {"name": "rewrite"}], {}, "two prompts are named rewrite"),
        ([{"name": "Rewrite it", "text": "{text}"}], {}, "pattern"),
        ([], {"prompts": []}, "at least 1"),
        ([], {"characters": {"min": 5, "max": 4}}, "max is 4, but min is 5"),
        ([], {"fields": {"api_key": "x"}}, "is a secret"),
        *[([], {"fields": {name: 2}}, f"{name} can't be replaced") for name in ("model", "messages", "stream", "n")],
        ([], {"share": 0}, "greater than 0"),
    ],
)
def test_wrong_settings_are_refused_by_name(prompts: list[dict[str, Any]], more: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        config_of(*prompts, **more)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "can't be read"),
        (b"\xff", "can't be read"),
        (b"no place", "has .text. 0 times"),
        (b"{a}{text}", "has .a."),
        (b"{text}" + b"!" * 1_000_000, "has 1,000,006 bytes, but each request has all of it"),
    ],
)
def test_a_file_that_is_no_prompt_is_refused(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SourceError, match=f"The prompt mine: {path} {message}"):
        synthesise.fingerprints(config_of({"name": "mine", "file": str(path)}))


@pytest.mark.parametrize("runtime_given", [{"price": {"input": -1}}, {"url": "host/v1"}, {"api_key_env": "MINE"}])
def test_a_wrong_endpoint_is_refused(runtime_given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        runtime(**{"url": "http://host/v1", **runtime_given})
