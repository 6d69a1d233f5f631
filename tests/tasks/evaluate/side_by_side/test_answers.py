"""Answers of a tiny model and of an endpoint: repeatable, by seeds of their own, resumed to the same bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from models.runtimes.batches import NoRoomError, Prompt, answer_batch, batches_of
from models.runtimes.transformers import TransformersRuntime
from storage.artifact import Artifact
from storage.digests import list_files, tree_digest
from storage.errors import ConfigError, EmptyOutput, SourceError
from storage.shards.lines import read_json_lines
from tasks.evaluate.side_by_side.answers import AnswersSpec, answers, check_here
from tasks.evaluate.side_by_side.config import AnswersConfig, PromptsConfig
from tasks.evaluate.side_by_side.generate import run
from tasks.evaluate.side_by_side.prompts import fingerprint, prompts, read_prompts
from tasks.stage.output import Output
from tests.runtimes import runtime_of
from tests.tasks.endpoint.completions import Body, Said, Server, serve
from tests.tasks.interrupt import interrupt
from tests.tasks.tiny_model import ANIMALS, RUNTIME, make_model

ASKED = [f"Where does the {animal} live{', they ask' * (number % 4)}?" for number, animal in enumerate(ANIMALS)]
KEY = "correct-horse-battery"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("answers") / "model")


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return asked_in(tmp_path_factory.mktemp("asked"), ASKED)


def asked_in(folder: Path, texts: list[str]) -> Artifact:
    out = Output.at(folder, stage="prompts")
    prompts.function(PromptsConfig(prompts=texts), out)
    return Artifact.at(out.path)


def output(folder: Path, **runtime: Any) -> Output:
    return Output.at(folder, stage="answers", runtime=runtime_of(RUNTIME, **runtime))


def made(config: AnswersConfig, asked: Artifact, model: Path | None, folder: Path) -> list[dict[str, Any]]:
    out = output(folder, backoff_seconds=0.01)
    answers.function(config, asked, Artifact.at(model) if model else None, out)
    return list(read_json_lines(out.path / "answers.jsonl"))


def here(config: AnswersConfig, asked: Artifact, model: Path, folder: Path) -> list[dict[str, Any]]:
    """As `made`, by the child's function in this process, which has imported torch already."""
    out = output(folder)
    spec = AnswersSpec(
        config=config,
        runtime=out.runtime,
        prompts=asked.path / "prompts.jsonl",
        model=model,
        scratch=out.scratch,
        out=out.path,
    )
    (folder / "spec.json").write_text(spec.model_dump_json())
    run(folder / "spec.json")
    return list(read_json_lines(out.path / "answers.jsonl"))


def test_greedy_answers_are_those_of_the_model_alone(model: Path, asked: Artifact, tmp_path: Path) -> None:
    rows = made(AnswersConfig(max_new_tokens=12, batch_size=5), asked, model, tmp_path)
    runtime = TransformersRuntime(model)
    for row, text in zip(rows, ASKED, strict=True):
        messages = [{"role": "user", "content": text}]
        assert row["prompt"] == messages
        assert row["answer"] == runtime.chat(messages, 12)
        ids = runtime.greedy(runtime.chat_ids(messages), 12)
        ended = ids[-1] == runtime.tokenizer.eos_token_id or len(ids) < 12
        assert (row["tokens"], row["ended"], row["fault"]) == (len(ids), ended, "")


def test_a_sample_depends_on_its_prompt_its_number_and_the_seed(model: Path, asked: Artifact, tmp_path: Path) -> None:
    config = AnswersConfig(max_new_tokens=8, samples=2, temperature=1.0)
    rows = here(config, asked, model, tmp_path / "one")
    alone = asked_in(tmp_path / "asked", [ASKED[9], ASKED[2]])
    fewer = here(config.model_copy(update={"batch_size": 3}), alone, model, tmp_path / "two")
    by_key = {(row["id"], row["sample"]): row for row in rows}
    assert [by_key[row["id"], row["sample"]] for row in fewer] == fewer, "whatever else is asked, in whichever batch"
    assert [row["sample"] for row in rows[:4]] == [0, 1, 0, 1]
    assert len({row["answer"] for row in rows}) > 25
    other = here(config.model_copy(update={"seed": 1}), alone, model, tmp_path / "three")
    assert [row["answer"] for row in other] != [row["answer"] for row in fewer]


def test_samples_have_the_probabilities_of_the_model(model: Path) -> None:
    """The first token of 3,000 samples, by a χ² test of the likeliest against the rest."""
    runtime = TransformersRuntime(model)
    ids = runtime.chat_ids([{"role": "user", "content": ASKED[0]}])
    temperature = 0.7
    p = torch.softmax(torch.tensor(runtime.log_probabilities(ids)) / temperature, -1)
    drawn = [
        row[0]
        for start in range(0, 3000, 500)
        for row in answer_batch(
            runtime.model, runtime.tokenizer, [Prompt(ids, seed) for seed in range(start, start + 500)], 1, temperature
        )
    ]
    likeliest = set(torch.argsort(p, descending=True)[:100].tolist())
    expected = float(p[list(likeliest)].sum())
    observed = sum(token in likeliest for token in drawn) / len(drawn)
    assert observed == pytest.approx(expected, abs=3.5 * (expected * (1 - expected) / len(drawn)) ** 0.5)
    assert expected > 1.2 * 100 / len(p), "so that it could be told from a draw of equals"
    prompts = [Prompt(ids, seed) for seed in range(8)]
    cold, greedy = (answer_batch(runtime.model, runtime.tokenizer, prompts, 4, degree) for degree in (1e-6, 0.0))
    assert cold == greedy, "the colder, the nearer to the likeliest"


def test_batches_are_of_like_length_and_no_answer_is_cut_for_another_prompt() -> None:
    given = [Prompt(range(length), 0) for length in (3, 90, 5, 7, 95, 4)]
    assert batches_of(given, 100, 20, 3) == [[4], [1], [3, 2, 5], [0]]
    with pytest.raises(NoRoomError, match="it has 100 tokens, and the context is 100") as error:
        batches_of([*given, Prompt(range(100), 0)], 100, 20, 3)
    assert error.value.place == 6


def test_a_prompt_without_room_is_named(model: Path, tmp_path: Path) -> None:
    asked = asked_in(tmp_path / "asked", ["Short?", "Where? " * 100])
    with pytest.raises(ConfigError, match=r"The prompt [0-9a-f]{16} of evaluate\.side_by_side leaves no room"):
        here(AnswersConfig(), asked, model, tmp_path)


@pytest.mark.soak
def test_killed_it_goes_on_and_ends_with_the_same_bytes(model: Path, asked: Artifact, tmp_path: Path) -> None:
    config = AnswersConfig(max_new_tokens=8, samples=2, temperature=1.0, batch_size=4)
    whole, killed = output(tmp_path / "whole"), output(tmp_path / "killed")
    answers.function(config, asked, Artifact.at(model), whole)
    interrupt(answers, config, (asked, Artifact.at(model)), killed, at=0.4)  # of one model
    kept = {path: path.stat().st_mtime_ns for path in (killed.scratch / "batches").iterdir()}
    assert kept
    answers.function(config, asked, Artifact.at(model), killed)
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items() if path.suffix == ".jsonl")
    assert tree_digest(list_files(whole.path)) == tree_digest(list_files(killed.path))


def echo(body: Body) -> Said:
    return Said(f"{body['seed'] % 7} {body['messages'][-1]['content']}")


def of(server: Server, **settings: Any) -> AnswersConfig:
    endpoint = {"url": server.url, "model": "them", "api_key_env": "THEIR_API_KEY"}
    return AnswersConfig.model_validate({"endpoint": endpoint, "max_new_tokens": 32, **settings})


@pytest.mark.soak
def test_an_endpoint_answers_as_a_model_does(asked: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THEIR_API_KEY", KEY)

    def answer(body: Body) -> Said:
        text = body["messages"][-1]["content"]
        if "owl" in text:
            return Said(status=400, content=b"against the rules")
        return Said("" if "cat" in text else echo(body).text, "length" if "hen" in text else "stop")

    with serve(answer) as server:
        rows = made(of(server, samples=2, temperature=0.5), asked, None, tmp_path)
    assert len(server.asked) == 32
    assert {(body["temperature"], body["max_tokens"], body["model"]) for body in server.asked} == {(0.5, 32, "them")}
    assert len({body["seed"] for body in server.asked}) == 32
    by_animal = dict(zip(ANIMALS, rows[::2], strict=True))
    assert (by_animal["owl"]["fault"], by_animal["owl"]["answer"]) == ("refused", "")
    assert (by_animal["cat"]["fault"], by_animal["cat"]["answer"]) == ("", "")
    assert (by_animal["hen"]["ended"], by_animal["dog"]["ended"]) == (False, True)
    assert by_animal["dog"]["answer"].endswith(ASKED[ANIMALS.index("dog")])
    assert by_animal["dog"]["tokens"] == 5, "as the server counts"
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or KEY.encode() not in path.read_bytes(), f"the key stands in {path.name}"


def test_an_endpoint_is_paid_once(asked: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THEIR_API_KEY", KEY)
    left = [Said(status=401, content=b"no more credit")]

    def answer(body: Body) -> Said:
        late = len(server.asked) > 9 and left
        return left.pop() if late else echo(body)

    with serve(answer) as server:
        out = output(tmp_path, concurrent_requests=1)
        with pytest.raises(SourceError, match="answered 401: no more credit"):
            answers.function(of(server), asked, None, out)
        answers.function(of(server), asked, None, out)
    assert len(server.asked) == 16 + 1
    assert out.facts["completion_tokens"] == 5 * 16


@pytest.mark.soak
def test_an_endpoint_that_refuses_all_or_has_no_key_ends_the_stage(
    asked: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THEIR_API_KEY", KEY)
    with serve(lambda body: Said(status=422)) as server, pytest.raises(EmptyOutput, match="has text: 0"):
        made(of(server), asked, None, tmp_path)
    monkeypatch.delenv("THEIR_API_KEY")
    with pytest.raises(ConfigError, match=r"side_by_side\.endpoints\.api_key_env: .* THEIR_API_KEY is not set"):
        check_here(of(server), RUNTIME)


def test_prompts_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "asked.jsonl"
    turns = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "What is a fox?"}]
    path.write_text('{"id": "a", "prompt": "What\u2028is it?"}\n' + json.dumps({"id": 7, "messages": turns}) + "\n")
    config = PromptsConfig(file=str(path))
    assert list(read_prompts(config)) == [
        {"id": "a", "messages": [{"role": "user", "content": "What\u2028is it?"}]},
        {"id": "7", "messages": turns},
    ]
    before = fingerprint(config)
    path.write_text('{"prompt": "Another?"}\n')
    assert fingerprint(config) != before


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("", "side_by_side needs prompts"),
        ("[1, 2]", "neither `prompt` nor `messages`"),
        ('{"prompt": "a", "messages": []}', "or both"),
        ('{"prompt": 5}', "neither a text nor a list"),
        ('{"prompt": "  "}', "lacks text or a role"),
        ('{"messages": [{"role": "tool", "content": "a"}]}', "lacks text or a role"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', "last message isn't the user's"),
        ('{"id": "", "prompt": "a"}', "its id isn't a text"),
        ('{"prompt": "\\ud800"}', "half of a character"),
        ('{"id": "\\ud800", "prompt": "a"}', "half of a character"),
        ('{"prompt": "a"}\n{"prompt": "a"}', "line 2: it repeats 1"),
        ('{"id": 1, "prompt": "a"}\n{"id": "1", "prompt": "b"}', "line 2: its id repeats 1"),
        ('{"prompt": ', "line 1: Expecting value"),
        ("\xff", "isn't a file of prompts"),
        ("[" * 100_000, "nested too deep"),
    ],
)
def test_what_is_no_prompt_is_told_with_its_line(line: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "asked.jsonl"
    path.write_bytes(line.encode("latin-1"))
    with pytest.raises(SourceError, match=why):
        list(read_prompts(PromptsConfig(file=str(path))))
    with pytest.raises(SourceError, match="can't be read"):
        fingerprint(PromptsConfig(file=str(tmp_path / "nowhere.jsonl")))
