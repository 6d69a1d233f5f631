"""Models by name: adapters over a base, two releases under a name, prices, a draft, and a server over a server."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from storage.digests import file_digest
from storage.manifest import SUMS
from tasks.serve.engines.openai_url import UrlConfig, UrlEngine
from tasks.serve.engines.protocol import EngineFault
from tests.tasks.export.test_speculation import released
from tests.tasks.serve.clients.conftest import Clients, exactly
from tests.tasks.serve.real_server import serving
from tests.tasks.tiny_model import make_model

ASKED: list[Any] = [{"role": "user", "content": "Where does the fox live?"}]
pytestmark = pytest.mark.soak


def likeliest(clients: Clients, model: str) -> tuple[str, str]:
    """The likeliest token of an answer with its probability, and the fingerprint of what answered."""
    answer = clients.openai.chat.completions.create(
        model=model, messages=ASKED, max_tokens=1, logprobs=True, top_logprobs=1, temperature=0
    )
    reported = answer.choices[0].logprobs
    assert reported is not None
    assert reported.content
    (top,) = reported.content[0].top_logprobs
    return f"{top.token} {top.logprob:.4f}", str(answer.system_fingerprint)


def test_an_adapter_answers_by_its_name_and_its_base_without_it(clients: Clients) -> None:
    said = {model: likeliest(clients, model) for model in ("plain", "polite", "plain", "polite")}
    assert said["plain"][0] != said["polite"][0]
    rows = {model.id: model.model_extra or {} for model in clients.openai.models.list().data}
    assert {model: print for model, (_, print) in said.items()} == {
        model: rows[model]["digest"] for model in ("plain", "polite")
    }
    assert rows["plain"]["proof"]["state"] == rows["polite"]["proof"]["state"] == "proved"
    assert clients.folders["polite"].joinpath("gguf-adapter/adapter.gguf").is_file()
    assert not clients.folders["polite"].joinpath("config.json").exists()


def test_two_releases_share_a_name_by_their_share(clients: Clients) -> None:
    prints = [likeliest(clients, "both")[1] for _ in range(40)]
    rows = {model.id: model.model_extra or {} for model in clients.openai.models.list().data}
    assert {*prints} == {rows["plain"]["digest"], rows["tools"]["digest"]}
    assert 5 < prints.count(rows["plain"]["digest"]) < 35
    deadline = time.monotonic() + 10  # the log is written by a thread
    while [line["release"] for line in clients.server.audit() if line["model"] == "both"][-40:] != prints:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_prices_are_given_or_measured(clients: Clients) -> None:
    said = "\n".join(clients.server.lines)
    assert "plain: USD 1000 a million prompt tokens, 2000 answered" in said
    measured = next(line for line in clients.server.lines if line.startswith("both: USD "))
    prompt, answered = (float(word) for word in measured.split() if word.replace(".", "").isdigit())
    assert 0 < prompt < answered
    before = clients.server.metric("gristmill_cost_usd_total")
    answer = clients.openai.chat.completions.create(model="both", messages=ASKED, max_tokens=4)
    assert answer.usage is not None
    cost = answer.usage.prompt_tokens * prompt + answer.usage.completion_tokens * answered
    assert clients.server.metric("gristmill_cost_usd_total") - before == pytest.approx(cost / 1e6, rel=1.0)


def test_a_server_answers_from_another_server(clients: Clients, tmp_path: Path) -> None:
    """The engine of the outer server is ours: OpenAI's API, which takes ids."""
    settings: dict[str, Any] = {
        "engine": {"name": "url", "slots": 4, "url": {"url": f"{clients.server.url}/v1", "model": "plain"}},
        "models": [{"release": str(clients.folders["plain"]), "name": "outer"}],
    }
    with serving(clients.folders["plain"], tmp_path, settings) as server:
        outer = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        asked: dict[str, Any] = {"messages": ASKED, "max_tokens": 12, "temperature": 0, "logprobs": True}
        inner_answer = clients.openai.chat.completions.create(model="plain", **asked)
        answer = outer.chat.completions.create(model="outer", **asked)
        assert answer.choices[0].message.content == inner_answer.choices[0].message.content
        assert answer.usage == inner_answer.usage
        assert answer.choices[0].logprobs is not None
        chunks = list(outer.chat.completions.create(model="outer", **asked, stream=True))
        assert "".join(one.choices[0].delta.content or "" for one in chunks) == answer.choices[0].message.content
        with pytest.raises(openai.BadRequestError, match="This model's server doesn't know grammar"):
            outer.chat.completions.create(model="outer", messages=ASKED, extra_body=exactly("x"))
        assert httpx.get(f"{server.url}/ready").status_code == 200
        stream = outer.chat.completions.create(model="outer", messages=ASKED, stream=True)
        next(iter(stream))
        stream.close()
        assert clients.idle(within=2)


def test_another_server_of_ours_is_not_asked_by_text(clients: Clients) -> None:
    """It would read the control tokens of a prompt as a user's text."""
    config = UrlConfig(url=f"{clients.server.url}/v1", model="plain", prompt="text")
    engine = UrlEngine(config, clients.tokenizer)
    with pytest.raises(EngineFault, match="takes no control tokens in a text"):
        asyncio.run(engine.start())


def test_a_draft_changes_no_answer(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", kv_heads=2)
    out = released(tmp_path / "made", model, model, formats=["safetensors", "gguf-f32"]).path
    files = [path for path in sorted(out.rglob("*")) if path.is_file()]
    (out / SUMS).write_text("".join(f"{file_digest(path)}  {path.relative_to(out)}\n" for path in files))
    answers = []
    for draft in (False, True):
        (folder := tmp_path / str(draft)).mkdir()
        engine = {"slots": 2, "threads": 1, "context": 128, "draft": draft}
        with serving(out, folder, {"engine": engine}) as server:
            client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
            answer = client.chat.completions.create(model="tiny", messages=ASKED, max_tokens=40, temperature=0)
            answers.append((answer.choices[0].message.content, answer.usage, answer.system_fingerprint))
    assert answers[0] == answers[1]
