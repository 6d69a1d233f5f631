"""A model by its URL: what llama.cpp's own server, and servers that fail, make of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from models.runtimes.llama_cpp import LlamaCppRuntime
from models.tokenizer import load_tokenizer
from storage.errors import ConfigError
from tasks.serve.engines.openai_url import UrlEngine
from tasks.serve.engines.protocol import EngineFault, EngineRefusal, Sampling
from tests.tasks.serve.engines.servers import engine_of, llama_server, saying, streamed, text_of

PROMPT = "The fox lives in the"
MODELS = b'HTTP/1.1 200 OK\r\nContent-Length: 49\r\n\r\n{"data": [{"id": "any", "owned_by": "a provider"}]}'


def with_engine(proved_release: Path, use: Callable[[UrlEngine], Awaitable[Any]], **config: Any) -> Any:
    """The outcome of a use of the release's f16 on a real server."""

    async def main(url: str) -> Any:
        engine = engine_of(url, load_tokenizer(proved_release), **config)
        await engine.start()
        try:
            return await use(engine)
        finally:
            await engine.stop()

    with llama_server(proved_release / "gguf" / "model-f16.gguf") as url:
        return asyncio.run(main(url))


def test_it_answers_as_llama_cpp_does_in_this_process(proved_release: Path) -> None:
    ids = load_tokenizer(proved_release).encode(PROMPT)
    with LlamaCppRuntime(proved_release / "gguf" / "model-f16.gguf") as runtime:
        expected, logs = runtime.text_after(ids, 12), runtime.log_probabilities(ids)

    async def use(engine: UrlEngine) -> None:
        assert engine.features == {"logprobs", "json_schema", "grammar"}
        text, finish, _ = await text_of(engine.generate(ids, Sampling(max_tokens=12, temperature=0)))
        assert finish == "length"
        assert text == expected.rstrip("\N{REPLACEMENT CHARACTER}"), "a stream ends with the last whole character"
        likeliest = await engine.next_token(ids, 5)
        assert [id for id, _ in likeliest] == list(logs.argsort()[::-1][:5])
        assert all(log == pytest.approx(logs[id], abs=1e-4) for id, log in likeliest)
        answer = await text_of(engine.generate(ids, Sampling(max_tokens=4, temperature=0, logprobs=3)))
        choices = [choice for piece in answer[2] for choice in piece.choices]
        assert choices[0].logprob == choices[0].top[0][1] == pytest.approx(likeliest[0][1], abs=1e-4)
        assert [len(choice.top) for choice in choices] == [3] * len(choices)
        assert answer[2][0].ids == (likeliest[0][0],)

    with_engine(proved_release, use)


def test_every_field_of_a_request_reaches_the_server(proved_release: Path) -> None:
    ids = load_tokenizer(proved_release).encode(PROMPT)

    async def use(engine: UrlEngine) -> None:
        async def says(**sampling: Any) -> str:
            return (await text_of(engine.generate(ids, Sampling(**{"max_tokens": 24, "seed": 1, **sampling}))))[0]

        greedy = await says(temperature=0)
        assert await says(top_k=1) == await says(top_p=1e-6) == await says(min_p=1.0) == greedy
        assert await says(seed=2) != await says() == await says()
        assert len({await says(seed=None) for _ in range(4)}) > 1
        stop = greedy[4:7]  # which the text may have earlier
        assert await says(temperature=0, stop=(stop,)) == greedy[: greedy.index(stop)]
        assert await says(temperature=0, repetition_penalty=5.0) != greedy
        assert await says(temperature=0, frequency_penalty=2.0, presence_penalty=2.0) != greedy
        assert await says(grammar='root ::= "yes" | "no"') in ("yes", "no")
        assert (await says(json_schema={"const": "owl"})).strip() == '"owl"'

    with_engine(proved_release, use)


def test_what_a_server_refuses_is_a_refusal_in_its_words(proved_release: Path) -> None:
    async def use(engine: UrlEngine) -> None:
        for ids, grammar, words in (
            ([5], "root ::= nothing", "grammar"),
            ([5] * 3000, None, "context size"),
            ([60_000], None, "token"),
        ):
            with pytest.raises(EngineRefusal, match=words):
                await text_of(engine.generate(ids, Sampling(max_tokens=4, grammar=grammar)))
        with pytest.raises(EngineRefusal, match="embeddings"):
            await engine.embed([5, 6])

    with_engine(proved_release, use)


def test_closing_an_answer_ends_it_in_the_server(proved_release: Path) -> None:
    async def use(engine: UrlEngine) -> None:
        answers = [engine.generate([5, 6], Sampling(max_tokens=100, logprobs=600)) for _ in range(2)]
        for answer in answers:
            await anext(answer)
        assert engine.metrics is not None, "it is the server's own counter"
        assert await engine.running() > 0
        for answer in answers:
            await answer.aclose()
        ended = time.monotonic()
        while await engine.running():
            assert time.monotonic() < ended + 1
            await asyncio.sleep(0.01)

    with_engine(proved_release, use)


def test_a_server_without_metrics_is_counted_here(proved_release: Path) -> None:
    event = 'data: {"choices": [{"text": "a", "finish_reason": null}]}\n\n'

    async def main() -> None:
        async with saying(*streamed(event, event), pause=0.1) as (url, _):
            engine = engine_of(url, load_tokenizer(proved_release))
            answer = engine.generate([5], Sampling(max_tokens=5))
            await anext(answer)
            assert await engine.running() == 1
            await answer.aclose()
            assert await engine.running() == 0

    asyncio.run(main())


@pytest.mark.parametrize("reason", ["null", '"abort"'])
def test_an_answer_that_breaks_off_is_a_fault(proved_release: Path, reason: str) -> None:
    event = f'data: {{"choices": [{{"text": "a", "finish_reason": {reason}}}]}}\n\n'

    async def main() -> None:
        async with saying(*streamed(event, "data: [DONE]\n\n")) as (url, _):
            answer = engine_of(url, load_tokenizer(proved_release)).generate([5], Sampling(max_tokens=5))
            with pytest.raises(EngineFault, match="ended"):
                await text_of(answer)

    asyncio.run(main())


def test_embeddings_are_found_and_made(proved_release: Path) -> None:
    async def main(url: str) -> None:
        engine = engine_of(url, load_tokenizer(proved_release))
        await engine.start()
        assert "embeddings" in engine.features
        one, again, other = [await engine.embed(ids) for ids in ([5, 6, 7], [5, 6, 7], [9])]
        assert one == again != other
        assert len(one) == len(other) == 64

    from xllamacpp import llama_pooling_type

    mean = llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    with llama_server(proved_release / "gguf" / "model-f16.gguf", embedding=True, pooling_type=mean) as url:
        asyncio.run(main(url))


def test_a_prompt_as_text_is_the_same_prompt_or_refused(proved_release: Path) -> None:
    tokenizer = load_tokenizer(proved_release)
    ids = tokenizer.encode(PROMPT)
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Where is it?"}], add_generation_prompt=True, return_dict=False
    )
    hostile = tokenizer.encode("a <|end|> b", split_special_tokens=True)
    assert hostile != tokenizer.encode("a <|end|> b")

    async def use(engine: UrlEngine) -> list[str]:
        if engine.config.prompt == "text":
            with pytest.raises(EngineRefusal, match="special token"):
                await text_of(engine.generate(hostile, Sampling(max_tokens=4)))
        sampling = Sampling(max_tokens=8, temperature=0)
        return [(await text_of(engine.generate(prompt, sampling)))[0] for prompt in (ids, list(chat))]

    assert with_engine(proved_release, use, prompt="text") == with_engine(proved_release, use)


def test_a_key_comes_from_the_environment(proved_release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, name = load_tokenizer(proved_release), "THEIR_API_KEY"

    async def start(url: str) -> None:
        await engine_of(url, tokenizer, api_key_env=name).start()

    with llama_server(proved_release / "gguf" / "model-f16.gguf", key="secret-1") as url:
        with pytest.raises(ConfigError, match="THEIR_API_KEY is not set"):
            asyncio.run(start(url))
        monkeypatch.setenv(name, "secret-1")
        asyncio.run(start(url))
        monkeypatch.setenv(name, "secret-2")
        engine = engine_of(url, tokenizer, api_key_env=name)
        with pytest.raises(EngineFault, match="status 401"):  # our fault, and not that of a user's request
            asyncio.run(text_of(engine.generate([5], Sampling(max_tokens=4))))


def test_openais_api_lacks_fields_that_are_refused_not_dropped(proved_release: Path) -> None:
    async def main() -> None:
        async with saying(MODELS) as (url, _):
            engine = engine_of(url, load_tokenizer(proved_release))
            with pytest.raises(EngineRefusal, match="top_k, grammar"):
                await text_of(engine.generate([5], Sampling(max_tokens=4, top_k=3, grammar="root ::= 1")))
            with pytest.raises(EngineFault, match=r"doesn't have other\. It has any"):
                await engine_of(url, load_tokenizer(proved_release), model="other").start()

    asyncio.run(main())


def test_tls_is_verified(proved_release: Path, tmp_path: Path) -> None:
    import ssl
    import subprocess

    command = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 1 -subj /CN=localhost"
    subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")

    async def main() -> None:
        async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=context) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(EngineFault, match=r"CERTIFICATE_VERIFY_FAILED|certificate"):
                await engine_of(f"https://127.0.0.1:{port}/v1", load_tokenizer(proved_release)).start()

    asyncio.run(main())
