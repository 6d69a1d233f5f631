"""A teacher behind an endpoint: what it is asked, what of its answers is refused, and that it teaches as one here."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from models.pretrained import load_pretrained
from models.tokenizer import load_tokenizer, token_text
from storage.artifact import Artifact
from storage.errors import ConfigError, DamagedArtifact, SourceError, TokenizerMismatch
from storage.shards.lines import read_json_lines, write_json_lines
from storage.store import Store
from tasks.endpoint.paid import PaidAnswers
from tasks.endpoint.prompts import TokenEndpoint, TokenSender, Vocabulary, tokens_of
from tasks.posttrain.conversations.divergence import divergence, divergence_of_top
from tasks.posttrain.methods.distill import DISTILL, DistillConfig, distill
from tasks.posttrain.pair_lengths import render_rows
from tasks.posttrain.rows.form import Row
from tasks.posttrain.top_tokens.config import TopTokensConfig
from tasks.posttrain.top_tokens.stage import top_tokens
from tasks.posttrain.top_tokens.table import asked_of
from tasks.stage.output import Output
from tasks.stage.runtime import EndpointRuntime
from tasks.stage.session import Session, open_session
from tests.tasks.endpoint.completions import Body, Said, Server, serve
from tests.tasks.interrupt import interrupt
from tests.tasks.posttrain.in_process import parts_of
from tests.tasks.posttrain.uneven import output
from tests.tasks.serve.real_server import release_of, serving
from tests.tasks.tiny_model import make_instructions, make_model

SIZE = 600  # of the vocabulary
SECTION = "distill.endpoint"
QUICK = {"backoff_seconds": 0.001, "timeout_seconds": 60, "retries": 1}


@dataclasses.dataclass(frozen=True)
class Lesson:
    """A student whose last layer differs from its teacher's, and what it learns."""

    student: Path
    teacher: Path
    pairs: Path
    rows: list[Row]

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", load_pretrained(self.teacher))
        object.__setattr__(self, "tokenizer", load_tokenizer(self.teacher))

    def entries(self, ids: list[int], count: int) -> list[Any]:
        """The prompt_logprobs of the teacher, in the form of vLLM."""
        told: list[Any] = [None]
        with torch.no_grad():
            logits_TV = self.model(torch.tensor([ids])).logits[0]  # type: ignore[attr-defined]
        for id, log_V in zip(ids[1:], logits_TV.log_softmax(-1), strict=False):
            ranks = {other: rank for rank, other in enumerate(log_V.argsort(descending=True).tolist(), 1)}
            named = {id: ranks[id], **{other: rank for other, rank in ranks.items() if rank <= count}}
            told.append({str(one): self.entry(one, float(log_V[one]), rank) for one, rank in named.items()})
        return told

    def entry(self, id: int, log: float, rank: int) -> dict[str, Any]:
        text = token_text(self.tokenizer, id)  # type: ignore[attr-defined]
        return {"logprob": log, "rank": rank, "decoded_token": text.strip()}  # as decoders of sentencepiece write it

    def answer(self, body: Body, change: Callable[[list[Any]], Any] = lambda told: told) -> Said:
        told = change(self.entries(body["prompt"], body["prompt_logprobs"]))
        choice = {"index": 0, "text": "x", "finish_reason": "length", "prompt_logprobs": told}
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": 1}
        return Said(content=json.dumps({"choices": [choice], "usage": usage}).encode())


@pytest.fixture(scope="module")
def lesson(tmp_path_factory: pytest.TempPathFactory) -> Lesson:
    folder = tmp_path_factory.mktemp("lesson")
    teacher, student = make_model(folder / "teacher"), make_model(folder / "student")
    changed = load_pretrained(teacher)
    with torch.no_grad():
        changed.model.layers[1].mlp.down_proj.weight.normal_(generator=torch.Generator().manual_seed(0))
    changed.save_pretrained(student)
    pairs = make_instructions(folder / "pairs")
    rows, _, _ = render_rows(
        DISTILL, DistillConfig(validation_share=0), [pairs / "all.jsonl"], load_tokenizer(student), 128
    )
    return Lesson(student, teacher, pairs, rows)


def config_of(url: str, top_k: int, **settings: Any) -> DistillConfig:
    endpoint = {"url": url, "model": "teacher", "top_k": top_k}
    return DistillConfig.model_validate({"endpoint": endpoint, "validation_share": 0, **settings})


def ask(server: Server, lesson: Lesson, folder: Path, rows: int, top_k: int, **runtime: Any) -> list[Any]:
    """The answers about the first rows, which are then in an artifact."""
    config = TokenEndpoint(url=server.url, model="teacher", top_k=top_k)
    vocabulary = Vocabulary(load_tokenizer(lesson.student), SIZE, "Choose another.")
    paid = PaidAnswers(folder / "answers.jsonl")
    sender = TokenSender(config, SECTION, EndpointRuntime(**{**QUICK, **runtime}), paid, vocabulary, 128)
    texts = {str(number): asked_of(row, f"row {number}") for number, row in enumerate(lesson.rows[:rows])}
    return [answer for _, answer in sender.ask(texts, lambda: None)]


def test_some_of_the_tokens_tell_less_and_all_of_them_everything() -> None:
    student, teacher = torch.randn(2, 9, 40, generator=torch.Generator().manual_seed(0)) * 4
    student.requires_grad_()
    whole = divergence(student, teacher, "forward")
    (gradient,) = torch.autograd.grad(whole.sum(), student, retain_graph=True)
    before = torch.zeros(9)
    for count in (1, 2, 5, 20, 39, 40):
        logs, ids = teacher.log_softmax(-1).topk(count)
        nats = divergence_of_top(student, ids, logs)
        assert (nats >= before - 1e-5).all(), "more tokens never tell less"
        assert (nats <= whole + 1e-5).all()
        (found,) = torch.autograd.grad(nats.sum(), student)
        assert found.isfinite().all()
        before = nats.detach()
    torch.testing.assert_close(nats, whole, atol=1e-5, rtol=0)
    torch.testing.assert_close(found, gradient, atol=1e-5, rtol=0)


def gradients(trainer: Any, rows: list[Row]) -> list[torch.Tensor]:
    """The loss of a batch, and its gradients."""
    batch = trainer._prepare_inputs(trainer.data_collator([dict(row) for row in rows]))
    loss = trainer.compute_loss(trainer.model, batch)
    loss.backward()
    return [loss.detach(), *(one.grad for one in trainer.model.parameters() if one.grad is not None)]


def test_an_endpoint_that_tells_of_all_tokens_teaches_as_a_teacher_here(lesson: Lesson, tmp_path: Path) -> None:
    rows = lesson.rows[:6]
    with serve(lesson.answer) as server:
        config = config_of(server.url, SIZE, epochs=0.1, hard_share=0.25)
        out = Output.at(tmp_path / "asked", stage="top_tokens", runtime=output(tmp_path, "top_tokens").runtime)
        few = list(read_json_lines(lesson.pairs / "all.jsonl"))[:6]
        write_json_lines(tmp_path / "few" / "all.jsonl", [*few, few[0], {**few[1], "id": "again"}])
        settings = TopTokensConfig(endpoint=config.endpoint)
        top_tokens.function(settings, Artifact.at(lesson.student), Artifact.at(tmp_path / "few"), out)
    assert len(server.asked) == len(rows), "equal rows are asked about once"
    assert {headers["path"] for headers in server.headers} == {"/v1/completions"}
    assert out.counts["covered_share"] == pytest.approx(1, abs=1e-5)
    assert out.facts["requests"] == len(rows)
    assert out.facts["prompt_tokens"] == sum(len(row["input_ids"]) for row in rows)
    parts = parts_of(DISTILL, config, lesson.student, rows, tmp_path)
    there = DISTILL.make_trainer(dataclasses.replace(parts, top_tokens=out.path))
    local = config.model_copy(update={"endpoint": None})
    parts = dataclasses.replace(parts_of(DISTILL, local, lesson.student, rows, tmp_path), teacher=lesson.teacher)
    here = DISTILL.make_trainer(parts)
    for found, expected in zip(gradients(there, rows), gradients(here, rows), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    more = parts_of(DISTILL, config, lesson.student, lesson.rows[:7], tmp_path)
    with pytest.raises(DamagedArtifact, match="tokens of a row are missing"):
        DISTILL.make_trainer(dataclasses.replace(more, top_tokens=out.path))


def test_what_is_kept_are_the_likeliest_of_the_learned_tokens(lesson: Lesson, tmp_path: Path) -> None:
    with serve(lesson.answer) as server:
        (answer,) = ask(server, lesson, tmp_path, 1, 3)
    row, (ids, logs) = asked_of(lesson.rows[0]), tokens_of(answer, 3)
    for place, few, told in zip(row.places, ids, logs, strict=True):
        entries = lesson.entries(list(row.ids), 3)[place]
        expected = sorted(((entry["logprob"], int(id)) for id, entry in entries.items()), reverse=True)[:3]
        assert few.tolist() == [id for _, id in expected]
        assert told.tolist() == pytest.approx([log for log, _ in expected])


def changed(**fields: Any) -> Callable[[list[Any]], Any]:
    """Another answer about the last token, whose entry gets these fields."""

    def change(told: list[Any]) -> list[Any]:
        *others, last = told
        first, *rest = last
        return [*others, {first: {**last[first], **fields}, **{one: last[one] for one in rest}}]

    return change


UNUSABLE: list[tuple[Callable[[list[Any]], Any], str]] = [
    (changed(logprob=float("nan")), "nan of token"),
    (changed(logprob=0.5), "0.5 of token"),
    (changed(logprob=-(10**400)), "is no log-probability"),
    (changed(logprob=None), "not log-probabilities by id"),
    (changed(logprob=True), "not log-probabilities by id"),
    (lambda told: [{"0": {"logprob": -0.1}} for _ in told], "lack that token"),
    (lambda told: [None, *[{"two": entry} for entry in told[1:]]], "not log-probabilities by id"),
    (lambda told: [None, *[[] for _ in told[1:]]], "lack that token"),
    (lambda told: [None, *[dict(list(entries.items())[:1]) for entries in told[1:]]], "it gives 1 of 2 tokens"),
    (lambda told: told[1:], "entries for a text of"),
    (lambda told: "no", "it has no entries"),
    (lambda told: [None, *[{id: {**one, "logprob": 0} for id, one in row.items()} for row in told[1:]]], "sum to more"),
]


@pytest.mark.parametrize(("change", "told"), UNUSABLE)
def test_an_answer_that_can_be_none_is_asked_for_again_and_told_of(
    change: Callable[[list[Any]], Any], told: str, lesson: Lesson, tmp_path: Path
) -> None:
    with (
        serve(lambda body: lesson.answer(body, change)) as server,
        pytest.raises(SourceError, match=f"failed 2 times: its reply is unusable: .*{told}"),
    ):
        ask(server, lesson, tmp_path, 1, 2)
    assert len(server.asked) == 2


FAULTS = [
    (Said(content=b"<html>a proxy</html>"), "its reply is not a completion: <html>"),
    (Said(content=b'{"choices": []}'), "its reply is not a completion"),
    (Said(content=b"[" * 100_000), "its reply is not a completion"),
    (Said(status=500, content=b"oops"), "it answered 500: oops"),
    (Said(status=429, headers={"Retry-After": "0"}), "it answered 429"),
    (Said(delay=1), "ReadTimeout"),
]


@pytest.mark.parametrize(("fault", "told"), FAULTS)
def test_what_passes_is_asked_again(fault: Said, told: str, lesson: Lesson, tmp_path: Path) -> None:
    left = [fault]
    seconds = 0.5 if fault.delay else 60
    with serve(lambda body: left.pop() if left else lesson.answer(body)) as server:
        assert len(ask(server, lesson, tmp_path / "passes", 1, 2, timeout_seconds=seconds)) == 1
    assert len(server.asked) == 2
    with serve(lambda body: fault) as server, pytest.raises(SourceError, match=f"failed 2 times: {told}"):
        ask(server, lesson, tmp_path / "stays", 1, 2, timeout_seconds=seconds)


@pytest.mark.parametrize(
    ("said", "error", "told"),
    [
        (changed(decoded_token="zebra"), TokenizerMismatch, "is 'zebra', ours '"),
        (
            lambda told: [*told[:-1], {**told[-1], "600": told[-1][next(iter(told[-1]))]}],
            TokenizerMismatch,
            "600 is beyond 600",
        ),
        (lambda told: None, ConfigError, "gives no prompt_logprobs"),
        (
            lambda told: [None, *[{id: {"logprob": one["logprob"]} for id, one in row.items()} for row in told[1:]]],
            ConfigError,
            "doesn't say what its tokens are",
        ),
        (
            Said(status=400, content=b"prompt: token 5 is a control token."),
            SourceError,
            "answered 400: prompt: token 5",
        ),
    ],
)
def test_what_stays_ends_at_once(said: Any, error: type[Exception], told: str, lesson: Lesson, tmp_path: Path) -> None:
    def answer(body: Body) -> Said:
        return said if isinstance(said, Said) else lesson.answer(body, said)

    with serve(answer) as server, pytest.raises(error, match=told):
        ask(server, lesson, tmp_path, 5, 2, concurrent_requests=1)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"divergence": "reverse"}, "divergence reverse needs the teacher's probability of every token"),
        ({"divergence": "jsd"}, "divergence jsd needs"),
        ({"temperature": 2.0}, "temperature 2.0 needs its logits of every token"),
        ({"on_policy_share": 0.5}, "on_policy_share 0.5 needs a teacher that reads what the student writes"),
        ({"teacher_from": {"folder": "a"}}, "teacher_from and endpoint name two teachers"),
        ({"teacher": "sft"}, "teacher and endpoint name two teachers"),
        ({"endpoint": {"url": "https://a/v1", "model": "m", "fields": {"prompt": "x"}}}, "prompt can't be replaced"),
    ],
)
def test_what_such_a_teacher_does_not_tell_is_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        config_of("https://a/v1", 20, **settings)


@pytest.fixture
def asking(lesson: Lesson) -> Iterator[Server]:
    with serve(lambda body: dataclasses.replace(lesson.answer(body), delay=0.02)) as server:
        yield server


@pytest.mark.soak
def test_killed_while_it_asks_it_pays_for_nothing_twice(lesson: Lesson, asking: Server, tmp_path: Path) -> None:
    config = config_of(asking.url, 4)
    inputs = (Artifact.at(lesson.student), Artifact.at(lesson.pairs))
    out = output(tmp_path, "top_tokens")
    settings = TopTokensConfig(endpoint=config.endpoint)
    interrupt(top_tokens, settings, inputs, out, at=40)
    kept, asked = len((out.scratch / "answers.jsonl").read_bytes().splitlines()), len(asking.asked)
    assert 40 <= kept < len(lesson.rows)
    top_tokens.function(settings, *inputs, out)
    again = len(asking.asked) - asked
    assert again == len(lesson.rows) - kept, "what was answered is not asked again"
    assert len(list(read_json_lines(out.path / "answers" / "00000.jsonl"))) == len(lesson.rows)


@pytest.mark.soak
def test_a_release_that_is_served_teaches(lesson: Lesson, tmp_path: Path) -> None:
    release = release_of(tmp_path, lesson.teacher, {"formats": ["safetensors"]})
    engine = {"name": "transformers", "slots": 2, "threads": 1}
    out = output(tmp_path / "out", "distill")
    with serving(release, tmp_path, {"engine": engine, "requests": {"control_tokens": True}}) as server:
        endpoint = {"url": f"{server.url}/v1", "model": "tiny", "top_k": 100}
        config = DistillConfig.model_validate(
            {"endpoint": endpoint, "epochs": 1, "learning_rate": 5e-3, "validation_share": 0.2}
        )
        distill.function(config, Artifact.at(lesson.student), Artifact.at(lesson.pairs), None, out)
        lines = [line for line in server.audit() if line["prompt_tokens"]]
    rows = out.counts["tables"]["Validation"]
    assert rows[-1]["divergence"] < 0.5 * rows[0]["divergence"]
    assert len(lines) == len(lesson.rows)


@pytest.mark.soak
def test_another_learning_rate_and_another_student_pay_for_nothing(lesson: Lesson, tmp_path: Path) -> None:
    store, rows = Store(str(tmp_path / "store")), Artifact.at(lesson.pairs)
    with serve(lesson.answer) as server, open_session(Session(store, output(tmp_path, "distill").runtime)):
        for rate, student in ((1e-3, lesson.student), (2e-3, lesson.student), (1e-3, lesson.teacher)):
            config = config_of(server.url, 4, epochs=0.1, learning_rate=rate)
            distill.materialize(config, (Artifact.at(student), rows, None))
    made = [location.partition("/")[0] for location in store.locations()]
    assert (made.count("top_tokens"), made.count("distill")) == (2, 3)
    assert len(server.asked) == len(lesson.rows)
