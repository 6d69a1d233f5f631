"""An OpenAI-compatible endpoint: which requests are repeated, which answers are kept, and where the key goes."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.instance import Instance
from pydantic import ValidationError
from rich.console import Console

from flows.commands.documents import label
from storage.errors import ConfigError, EmptyOutput, SourceError
from tasks.endpoint.client import Asked, Endpoint, address_of, api_key
from tasks.endpoint.config import EndpointConfig
from tasks.endpoint.paid import PaidAnswers
from tasks.endpoint.reply import counted
from tasks.evaluate.safety.config import RefusalsConfig
from tasks.evaluate.safety.refusals import measure_refusals
from tasks.evaluate.score.hosted_model import HostedModel
from tasks.filter.labels.file import LabelFile
from tasks.filter.labels.sample import Item
from tasks.significance.scores import judged, verdict
from tasks.stage.output import Output
from tasks.stage.runtime import EndpointRuntime
from tests.runtimes import runtime_of
from tests.tasks.endpoint.completions import Body, Said, Server, serve

KEY = "correct-horse-battery"
QUESTIONS = [[{"role": "user", "content": f"Question {number}?"}] for number in range(12)]


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_API_KEY", KEY)


def endpoint_of(server: Server, folder: Path, settings: dict[str, Any] | None = None, **runtime: Any) -> Endpoint:
    given = {"url": server.url, "model": "judge-1", "api_key_env": "JUDGE_API_KEY", **(settings or {})}
    config = EndpointConfig.model_validate(given)
    usual = EndpointRuntime(**{"backoff_seconds": 0.001, "timeout_seconds": 5, **runtime})
    return Endpoint(config, Asked(128, 1.0, 0, "feedback.endpoint"), usual, PaidAnswers(folder / "answers.jsonl"))


def echo(body: Body) -> Said:
    return Said(f"About {body['messages'][-1]['content']}")


@contextmanager
def failing(*faults: Said) -> Iterator[Server]:
    """A server that fails some times, and then answers."""
    left = list(faults)
    with serve(lambda body: left.pop(0) if left else echo(body)) as server:
        yield server


@pytest.mark.parametrize(
    "fault",
    [
        Said(status=500, content=b"oops"),
        Said(status=429, content=b"{}", headers={"Retry-After": "0"}),
        Said(content=b"<html>a proxy</html>"),
        Said(content=b'{"choices": []}'),
        Said(content=b'{"choices": [{"message": {"content": 5}}]}'),
        Said(content=b"[" * 100_000),
        Said(content=b'{"error": {"message": "overloaded"}}'),
        Said(content=b'{"choices": [{"finish_reason": "error", "message": {"content": "It lives in"}}]}'),
        Said(delay=0.5),
        Said(content=b'{"cut": ', headers={"Content-Length": "100", "Connection": "close"}),
    ],
)
def test_what_passes_is_asked_again(fault: Said, tmp_path: Path) -> None:
    with failing(fault, fault) as server:
        seconds = 0.2 if fault.delay else 5
        endpoint = endpoint_of(server, tmp_path, timeout_seconds=seconds)
        assert [reply.text for reply in endpoint.say(QUESTIONS[:1])] == ["About Question 0?"]
    assert len(server.asked) == 3
    assert endpoint.repeated == 2


def test_an_answer_is_not_lost_to_a_count_of_tokens_that_can_be_none(tmp_path: Path) -> None:
    numbers = ["-5", '"many"', "1" + 30 * "0", "1e999", "NaN", "{}", "[]", "null"]
    usages = [*(f'{{"prompt_tokens": {number}, "completion_tokens": 3}}' for number in numbers), "[1]", '"x"', "7"]
    left = [
        Said(content=b'{"choices": [{"message": {"content": "Yes."}}], "usage": %b}' % one.encode()) for one in usages
    ]
    with serve(lambda body: left.pop(0)) as server:
        endpoint = endpoint_of(server, tmp_path, concurrent_requests=1)
        answers = endpoint.complete([*QUESTIONS[:1]] * len(usages), range(len(usages)), [0] * len(usages))
    assert answers == [*[("Yes.", True, 3, 0)] * len(numbers), *[("Yes.", True, 0, 0)] * 3]
    assert endpoint.repeated == 0


def test_a_server_that_fails_for_good_ends_the_stage_and_keeps_what_it_answered(tmp_path: Path) -> None:
    def answer(body: Body) -> Said:
        return echo(body) if "0" in body["messages"][-1]["content"] else Said(status=503, content=b"busy")

    with serve(answer) as server:
        with pytest.raises(SourceError, match=r"endpoint 127\.0\.0\.1 failed 3 times: it answered 503: busy"):
            endpoint_of(server, tmp_path, retries=2).say(QUESTIONS[:2])
        before = len(server.asked)
        assert before == 1 + 3
        endpoint_of(server, tmp_path).say(QUESTIONS[:1])
    assert len(server.asked) == before, "the first was answered, and is not requested again"


@pytest.mark.parametrize("status", [301, 401, 403, 404])
def test_an_error_that_stays_is_told_at_once_without_the_key(status: int, tmp_path: Path) -> None:
    said = Said(status=status, content=f"no such thing for {KEY}".encode(), headers={"Location": "/elsewhere"})
    with serve(lambda body: said) as server, pytest.raises(SourceError) as error:
        endpoint_of(server, tmp_path, concurrent_requests=1).say(QUESTIONS)
    assert len(server.asked) == 1
    assert f"answered {status}: no such thing for ***" in str(error.value)
    assert KEY not in str(error.value)


def test_a_prompt_that_is_refused_is_dropped_alone(tmp_path: Path) -> None:
    def answer(body: Body) -> Said:
        return Said(status=400, content=b"too long") if "3" in body["messages"][-1]["content"] else echo(body)

    with serve(answer) as server:
        replies = endpoint_of(server, tmp_path).say(QUESTIONS[:6])
    assert [reply.fault for reply in replies] == ["", "", "", "refused", "", ""]
    assert len(server.asked) == 6


def test_answers_that_were_paid_for_are_not_asked_for_again(tmp_path: Path) -> None:
    with serve(echo) as server:
        first = endpoint_of(server, tmp_path).say(QUESTIONS)
        kept = tmp_path / "answers.jsonl"
        kept.write_bytes(kept.read_bytes()[:-10])  # by a kill
        again = endpoint_of(server, tmp_path)
        assert again.say(QUESTIONS) == first
        assert len(server.asked) == len(QUESTIONS) + 1
        assert again.paid.total("prompt_tokens") == 10 * len(QUESTIONS)
        other = endpoint_of(server, tmp_path, {"model": "judge-2"})
        other.say(QUESTIONS[:1])
        assert len(server.asked) == len(QUESTIONS) + 2, "another model is another answer"


def test_no_more_requests_at_once_than_asked_for_and_answers_in_order(tmp_path: Path) -> None:
    def answer(body: Body) -> Said:
        return Said(echo(body).text, delay=0.05 if "1" in body["messages"][-1]["content"] else 0.02)

    with serve(answer) as server:
        replies = endpoint_of(server, tmp_path, concurrent_requests=3).say(QUESTIONS)
    assert server.most_at_once == 3
    assert [reply.text for reply in replies] == [f"About Question {number}?" for number in range(12)]


def test_a_request_is_what_the_profile_says(tmp_path: Path) -> None:
    with serve(echo) as server:
        fields = {"max_tokens": None, "max_completion_tokens": 7, "seed": None}
        endpoint = endpoint_of(server, tmp_path, {"fields": fields})
        assert len(set(map(id, endpoint.sample(QUESTIONS[:1], 3, [5])[0]))) == 3
        endpoint_of(server, tmp_path).sample(QUESTIONS[:1], 2, [5])
    asked = sorted(server.asked, key=lambda body: body.get("seed", 0))
    assert len(asked) == 5, "several samples are several requests, even if these are equal"
    assert asked[0] == {"model": "judge-1", "messages": QUESTIONS[0], "temperature": 1.0, "max_completion_tokens": 7}
    assert [body["seed"] for body in asked[3:]] == [5, 6]
    assert asked[4]["max_tokens"] == 128
    assert {headers["path"] for headers in server.headers} == {"/v1/chat/completions"}
    assert {headers["Authorization"] for headers in server.headers} == {f"Bearer {KEY}"}


@pytest.mark.parametrize(
    ("said", "letter"),
    [("A", "A"), (" B.", "B"), ("**A**", "A"), ("Answer B", "B"), ("A or B", ""), ("Both", ""), ("a", ""), ("", "")],
)
def test_a_judgement_is_one_letter_named_alone(said: str, letter: str, tmp_path: Path) -> None:
    with serve(lambda body: Said(said)) as server:
        (reply,) = endpoint_of(server, tmp_path).compare(QUESTIONS[:1])
    assert reply.fault == ("" if letter else "unclear" if said else "empty")
    assert not letter or reply.text == letter


def test_a_key_that_is_not_there_or_can_not_be_one_is_told_before_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EndpointConfig(url="https://host/v1", model="a", api_key_env="JUDGE_API_KEY")
    assert api_key(config, "feedback.endpoint") == KEY
    monkeypatch.setenv("JUDGE_API_KEY", "häßlich geheim")
    with pytest.raises(ConfigError, match="JUDGE_API_KEY has characters that a key can't have") as error:
        api_key(config, "feedback.endpoint")
    assert "geheim" not in str(error.value)
    monkeypatch.delenv("JUDGE_API_KEY")
    with pytest.raises(ConfigError, match="the environment variable JUDGE_API_KEY is not set"):
        api_key(config, "feedback.endpoint")
    with pytest.raises(ValidationError, match="hide only values of variables"):
        EndpointConfig(url="https://host/v1", model="a", api_key_env="MINE")
    with pytest.raises(ValidationError, match="api_key is a secret: name the variable"):
        EndpointConfig(url="https://host/v1", model="a", fields={"api_key": KEY})
    with pytest.raises(ConfigError, match=r"feedback\.endpoint\.url is not an address"):
        address_of(EndpointConfig(url="https://host:port/v1", model="a"), "feedback.endpoint")
    for url in ("host/v1", "ftp://host/v1", "https://host/v1?key=a"):
        with pytest.raises(ValidationError, match="pattern"):
            EndpointConfig(url=url, model="a")


def test_an_answer_that_is_longer_than_its_tokens_can_be_is_unfinished_and_kept_short(tmp_path: Path) -> None:
    with serve(lambda body: Said("long " * 100_000)) as server:
        (reply,) = endpoint_of(server, tmp_path).say(QUESTIONS[:1])
    assert reply.fault == "unfinished"
    assert len(reply.text) < 10_000


def test_a_key_that_an_answer_repeats_is_struck_out_and_kept_nowhere(tmp_path: Path) -> None:
    with serve(lambda body: Said(f"You sent {KEY}.")) as server:
        (reply,) = endpoint_of(server, tmp_path).say(QUESTIONS[:1])
    assert reply.text == "You sent ***."
    assert KEY not in (tmp_path / "answers.jsonl").read_text()


def test_a_key_of_a_few_letters_is_not_struck_out_of_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_API_KEY", "none")
    with serve(lambda body: Said("There is none.")) as server:
        (reply,) = endpoint_of(server, tmp_path).say(QUESTIONS[:1])
    assert reply.text == "There is none."


def message(**parts: Any) -> bytes:
    return json.dumps({"choices": [{"message": parts.pop("message", {}), **parts}]}).encode()


NOTHING = [
    Said(content=message(message={"content": None, "reasoning_content": "so"}, finish_reason="length")),
    Said(content=message(message={"content": None}, finish_reason="stop")),
    Said(content=message(message={"role": "assistant", "tool_calls": []}, finish_reason="tool_calls")),
    Said(""),
    Said(" \n"),
]


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        *[(nothing, "empty") for nothing in NOTHING],
        (Said("Yes, bec", "length"), "unfinished"),
        *[(Said("Yes, bec", reason), "unfinished") for reason in ("content_filter", "abort", "max_tokens", "safety")],
        (Said(content=b'{"choices": [{"message": {"content": [{"type": "text", "text": "Yes."}]}}]}'), ""),
        (Said("Yes.", "STOP"), ""),
        (Said("Yes " * 4096), "unfinished"),
        (Said(status=422), "refused"),
        (Said("Yes."), ""),
    ],
)
def test_what_is_wrong_with_an_answer_has_a_name(said: Said, fault: str, tmp_path: Path) -> None:
    with serve(lambda body: said) as server:
        endpoint = endpoint_of(server, tmp_path)
        (reply,) = endpoint.say(QUESTIONS[:1])
        (answer,) = endpoint.complete(QUESTIONS[:1], [0], [0])
    assert reply.fault == (answer.fault if answer else "refused") == fault


def test_faults_are_counted_and_nothing_but_silence_is_an_error() -> None:
    assert counted(["", "empty", "refused", "unfinished", "empty"], "x") == {"empty": 2, "refused": 1, "unfinished": 1}
    assert counted([], "x") == counted([""], "x") == {}
    with pytest.raises(EmptyOutput, match=r"None of 3 answers .* has text: 2 are empty, 1 were refused\. Check x:"):
        counted(["empty", "refused", "empty"], "x")


@pytest.mark.parametrize("nothing", [*NOTHING, Said(status=413)])
@pytest.mark.parametrize("asks", ["benchmark", "judge of refusals", "labels"])
def test_whoever_asks_tells_an_endpoint_that_says_nothing(asks: str, nothing: Said, tmp_path: Path) -> None:
    with serve(lambda body: nothing) as server, pytest.raises(EmptyOutput, match=r"None of 2 answers .* has text"):
        USERS[asks](EndpointConfig(url=server.url, model="m"), tmp_path)


def test_faults_of_a_few_answers_stand_beside_the_score(tmp_path: Path) -> None:
    with serve(lambda body: Said("4", "length") if "0" in body["messages"][0]["content"] else Said("")) as server:
        lm = ask_benchmark(EndpointConfig(url=server.url, model="m"), tmp_path)
    assert lm.faults == {"empty": 1, "unfinished": 1}
    score = {
        "headline": "acc",
        "chance": None,
        "items": 2,
        "metrics": {"acc": {"value": 0.5, "stderr": None, "higher_is_better": True}},
    }
    shown = judged(
        {
            **score,
            "chance": None,
            "items": 2,
            "subtasks": {},
            "too_long": 0,
            "cut": 0,
            "replaced": 0,
            "faults": lm.faults,
        },
        {},
    )
    told = verdict({"models": {"wise": {"tasks": {"gsm8k": shown}}}})
    assert told == "wise in gsm8k: of the endpoint's answers 1 empty, 1 unfinished."


def ask_benchmark(config: EndpointConfig, folder: Path) -> HostedModel:
    lm = HostedModel(config, EndpointRuntime(), folder / "answers.jsonl", 0)
    asked = [Instance("generate_until", {}, (f"{number} and 2?", {"until": ["\n"]}), number) for number in range(2)]
    lm.generate_until(asked)
    return lm


def ask_judge(config: EndpointConfig, folder: Path) -> None:
    out = Output.at(folder, stage="safety", runtime=runtime_of(workers=1, threads=1, device="cpu"))
    rows = [{"id": f"{n}", "prompt": [{"role": "user", "content": "Why?"}], "answer": f"{n}"} for n in range(2)]
    measure_refusals(RefusalsConfig(harmful="x.jsonl", judge=config), {"harmful": rows}, 0, out)


def ask_labels(config: EndpointConfig, folder: Path) -> None:
    (folder / "prompt").write_text("Is it good? {text}")
    server = label.Server(config.url, config.model, folder / "prompt", None)
    items = [Item(id=f"{n}", document=f"{n}", source="web", text=f"A text {n}.") for n in range(2)]
    label._ask(Console(file=io.StringIO()), items, LabelFile(folder / "labels.jsonl", "judge", "good?"), server)


USERS: dict[str, Any] = {"benchmark": ask_benchmark, "judge of refusals": ask_judge, "labels": ask_labels}
