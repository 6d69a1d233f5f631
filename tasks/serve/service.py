"""Answers a request: who asks, what may be asked, the template, the guards, the engine, and what it cost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from models.conversation import TemplateFaultError
from storage.errors import StoreError
from tasks.serve.access import Access, AccessRefused, Admission
from tasks.serve.api.errors import Refusal, unfit
from tasks.serve.ask import Ask, Client, Conversation, Delta, FinishReason, Usage
from tasks.serve.config import ServeConfig
from tasks.serve.engines.protocol import EngineFault, EngineRefusal, Piece, Sampling, TokenChoice
from tasks.serve.guards import Guards, OutputGuard
from tasks.serve.release import Release
from tasks.serve.served import Served
from tasks.serve.tools import ToolText
from tasks.serve.turns import QueueFull, Waited
from tasks.serve.watch import Watch

if TYPE_CHECKING:
    from tasks.serve.watch import Observed

log = logging.getLogger("gristmill.serve")
T = TypeVar("T")
MOST_PROMPT_LOGPROBS = 1_000_000  # of an answer, which then has about 60 MB
REMEMBERED = 10_000  # requests that may still get a vote
SHORT = 1 << 12  # bytes of a request that is read in milliseconds


class Service:
    """The models that are served by name, and what every request passes."""

    def __init__(self, config: ServeConfig, access: Access, guards: Guards, watch: Watch) -> None:
        self.config, self.access, self.guards, self.watch = config, access, guards, watch
        self.models: dict[str, Served] = {}
        self.also: dict[str, tuple[Served, float]] = {}  # a second release under a name, and its share
        self.answered = dict[str, tuple[str, str]]()  # of the last requests, by id: key and release
        self._reader = ThreadPoolExecutor(1, "reader")

    def find(self, name: str) -> Served:
        """The model of this name, the first one for an empty name. Raises Refusal."""
        name = name or next(iter(self.models), "")
        if name not in self.models:
            known = ", ".join(self.models)
            raise Refusal(404, f"The model {name[:100]!r} is not served. There is {known}.", "model_not_found", "model")
        other, share = self.also.get(name, (None, 0.0))
        return other if other is not None and other.ready and random.random() < share else self.models[name]

    async def read(self, size: int, work: Callable[[], T]) -> T:
        """The result of work on a request of this many bytes: at once, or in a thread if it may take long, so that
        streams go on meanwhile. One long request is read at a time."""
        if size <= SHORT:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._reader, work)

    def gauge(self) -> None:
        """Report the load of each engine, once: adapters share that of their base."""
        for served in self.models.values():
            if served.base is None:
                turns = [served.turns, served.grammar_turns]
                if served.name in self.also:
                    other = self.also[served.name][0]
                    turns += [other.turns, other.grammar_turns]
                running, waiting = sum(one.running for one in turns), sum(one.waiting for one in turns)
                self.watch.load(served.name, running=running, waiting=waiting)

    async def status(self) -> dict[str, Any]:
        """Models, engines and queues, and the figures of the last minutes."""
        self.gauge()
        status = self.watch.status()
        names: dict[str, str] = {}
        with contextlib.suppress(StoreError):  # a failing ledger has errors of its own
            names = await self.access.names()
        for spent in status["keys"]:
            spent["name"] = names.get(spent["key"], "")
        for served in self.models.values():
            status["models"][served.name] |= {
                "ready": served.ready,
                "slots": served.turns.slots,
                "context": served.context,
                "served_is_released": None if served.proof is None else str(served.proof),
            }
        return status

    async def embed(self, served: Served, client: Client, texts: Sequence[str]) -> dict[str, Any]:
        """The embeddings of texts. Raises Refusal."""
        observed = self.watch.request(request_id=client.request_id, route=client.route, model=served.name)
        status, reason, tokens, cost, admission = 200, None, 0, 0.0, None
        try:
            size = sum(map(len, texts))
            release = served.release if size <= SHORT else served.apart
            prompts = await self.read(size, lambda: self._texts(texts, release, observed))
            tokens = sum(map(len, prompts))
            admission = await self._admit(client, served, tokens, 0)
            observed.names(served.name, admission.key)
            vectors = [await served.engine.embed(ids) for ids in prompts]
        except Refusal as refusal:
            status, reason, tokens = refusal.status, refusal.code, 0
            raise
        except EngineFault as error:
            status, reason, tokens = 503, "engine_failed", 0
            raise Refusal(503, str(error), reason, retry_after=2.0) from error
        except EngineRefusal as error:
            status, tokens = 400, 0
            raise unfit(str(error)) from error
        finally:
            if admission is not None:
                cost = admission.settle(tokens, 0)
            observed.end(
                status=status,
                finish="stop",
                prompt_tokens=tokens,
                completion_tokens=0,
                cost=cost,
                request_text="\n".join(texts),
                answer_text="",
                engine=served.engine.name,
                reason=reason,
            )
        rows = [{"object": "embedding", "index": place, "embedding": vector} for place, vector in enumerate(vectors)]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "data": rows, "model": served.name, "usage": usage}

    async def prompt_tokens(self, ask: Ask, client: Client) -> int:
        """The tokens of a request's prompt. They aren't booked, but the request counts as one of its key. Raises
        Refusal."""
        observed = self.watch.request(request_id=client.request_id, route=client.route)
        status, reason = 200, None
        try:
            served = self.find(ask.model)
            admission = await self._admit(client, served, 0, 0)
            observed.names(served.name, admission.key)
            admission.settle(0, 0)
            return len(await self._ids(ask, served, observed))
        except Refusal as refusal:
            status, reason = refusal.status, refusal.code
            raise
        finally:
            observed.end(status=status, finish=None, reason=reason)

    def open(self, ask: Ask, observed: Observed) -> Answering:
        """The answer to a request, which has yet to begin. Close it in any case. Raises Refusal."""
        answering = Answering(ask, self.find(ask.model), observed)
        observed.names(answering.served.name, streamed=ask.stream)
        return answering

    async def begin(self, answering: Answering, client: Client) -> None:
        """Everything before the first token: the request is checked, admitted and has its turn. Raises Refusal."""
        ask, served = answering.ask, answering.served
        ids = await self._ids(ask, served, answering.observed)
        if not ids:
            raise unfit("The prompt is empty.", "prompt")
        room = served.context - len(ids)
        if room < 1:
            raise unfit(
                f"The prompt has {len(ids):,} tokens, and the context is {served.context:,}.",
                "messages" if isinstance(ask.prompt, Conversation) else "prompt",
                "context_length_exceeded",
            )
        most = min(ask.sampling.max_tokens or room, room, self.config.requests.max_tokens or room)
        _check_prompt_logprobs(ask.sampling, served, len(ids))
        if not served.health.takes_requests:
            raise Refusal(503, "The engine is not ready. Try again soon.", "engine_not_ready", retry_after=2.0)
        admission = await self._admit(client, served, len(ids), most * ask.answers)
        answering.admit(admission, len(ids))
        if admission.tokens_left is not None:
            most = min(most, max(admission.tokens_left // ask.answers, 1))
        answering.prepare(ids, replace(ask.sampling, max_tokens=most, adapter=served.adapter), self.guards)
        await answering.take_turn(admission.key)
        answering.observed.started(most, served.digest)
        self._remember(client.request_id, admission.key, served.digest)

    def _remember(self, request_id: str, key: str, digest: str) -> None:
        self.answered[request_id] = key, digest
        if len(self.answered) > REMEMBERED:
            del self.answered[next(iter(self.answered))]

    async def _ids(self, ask: Ask, served: Served, observed: Observed) -> list[int]:
        """The ids of the prompt, after the guards. Raises Refusal."""
        size = _size(ask)
        release = served.release if size <= SHORT else served.apart
        return await self.read(size, lambda: self._prompt(ask, served.name, release, observed))

    def _prompt(self, ask: Ask, name: str, release: Release, observed: Observed) -> list[int]:
        prompt = ask.prompt
        if isinstance(prompt, Conversation):
            if prompt.tools and not release.takes_tools:
                raise unfit(f"The chat template of {name} has no tools.", "tools", "unsupported_field")
            messages = [dict(message) for message in prompt.messages]
            texts = self._guarded([message["content"] for message in messages], observed, "messages")
            messages = [{**message, "content": text} for message, text in zip(messages, texts, strict=True)]
            for message in messages:
                if "tool_calls" in message:
                    message["tool_calls"] = self._guarded_within(message["tool_calls"], observed, "messages")
            try:
                return release.chat_ids(messages, self._guarded_within(list(prompt.tools), observed, "tools"))
            except TemplateFaultError as error:
                raise unfit(f"The chat template refuses the conversation: {error}.", "messages") from error
        if isinstance(prompt, str):
            return release.text_ids(self._guarded([prompt], observed, "prompt")[0])
        try:
            ids = release.checked_ids(prompt, control=self.config.requests.control_tokens)
        except ValueError as error:
            raise unfit(f"prompt: {error}.", "prompt") from error
        text = release.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        if self._guarded([text], observed, "prompt") != [text]:
            raise unfit("A guard would mask a part of the prompt, which it can't do with ids: send text.", "prompt")
        return ids

    def _texts(self, texts: Sequence[str], release: Release, observed: Observed) -> list[list[int]]:
        return [release.text_ids(text) for text in self._guarded(texts, observed, "input")]

    def _guarded(self, texts: Sequence[str], observed: Observed, param: str) -> list[str]:
        verdict = self.guards.check_input(texts)
        for finding in verdict.findings:
            observed.finding(finding)
        if verdict.action == "refuse":
            raise unfit(verdict.message, param, "content_policy_violation")
        return list(verdict.texts)

    def _guarded_within(self, value: Any, observed: Observed, param: str) -> Any:
        """Tools, or calls of them, with each text guarded. Names of parameters stay as they are."""
        if isinstance(value, str):
            return self._guarded([value], observed, param)[0]
        if isinstance(value, Mapping):
            return {name: self._guarded_within(one, observed, param) for name, one in value.items()}
        return [self._guarded_within(one, observed, param) for one in value] if isinstance(value, list) else value

    async def _admit(self, client: Client, served: Served, prompt: int, most: int) -> Admission:
        try:
            return await self.access.admit(
                client.presented,
                prompt_tokens=prompt,
                max_tokens=most,
                model=served.name,
                price=served.price,
                local=client.local,
            )
        except AccessRefused as error:
            raise refused_access(error) from error
        except StoreError as error:
            raise Refusal(503, "The ledger of the keys can't be used.", "ledger_failing", retry_after=5.0) from error


def _check_prompt_logprobs(sampling: Sampling, served: Served, tokens: int) -> None:
    """Raises Refusal for log-probabilities of a prompt that the engine doesn't give, or for too many."""
    count = sampling.prompt_logprobs
    if count is None:
        return
    if "prompt_logprobs" not in served.engine.features:
        raise unfit(
            f"{served.engine.name} gives no prompt_logprobs of {served.name}.", "prompt_logprobs", "unsupported"
        )
    if tokens * (count + 1) > MOST_PROMPT_LOGPROBS:
        raise unfit(
            f"prompt_logprobs {count} of {tokens:,} tokens are over {MOST_PROMPT_LOGPROBS:,} numbers.",
            "prompt_logprobs",
        )


def refused_access(error: AccessRefused) -> Refusal:
    """The answer to a client without a key, or beyond its limits."""
    return Refusal(error.status, error.message, error.code, retry_after=error.retry_after)


class Answering:
    """One request's answers, as additions in the order in which they come. Close it in any case: that frees its turn,
    books what was sent, and ends the observation."""

    def __init__(self, ask: Ask, served: Served, observed: Observed) -> None:
        self.ask, self.served, self.observed = ask, served, observed
        self.usage, self.begun = Usage(0, 0), False  # begun: the client has the head of the answer
        self._stack = AsyncExitStack()
        self._admission: Admission | None = None
        self._sent = [""] * ask.answers
        self._called: list[str] = []  # calls of tools, as the model wrote them
        self._finish: FinishReason | None = None
        self._cost = 0.0
        self._asked = False  # the engine
        self._closed = False

    def admit(self, admission: Admission, prompt_tokens: int) -> None:
        """The request is booked from here on."""
        self._admission, self.usage = admission, Usage(prompt_tokens, 0)

    def prepare(self, ids: list[int], sampling: Sampling, guards: Guards) -> None:
        """The prompt and the settings for the engine."""
        self._ids, self._sampling, self._guards = ids, sampling, guards

    async def take_turn(self, key: str) -> None:
        """Wait for the engine. Raises Refusal."""
        turns = self.served.turns_for(self._sampling)
        await self._stack.enter_async_context(self.served.used())
        try:
            await self._stack.enter_async_context(turns.turn(key))
        except QueueFull:
            message = f"The queue has {turns.longest} requests."
            raise Refusal(429, message, "queue_full", retry_after=turns.retry_after()) from None
        except Waited:
            message = f"The request waited {turns.seconds:g} s for its turn."
            raise Refusal(503, message, "queue_timeout", retry_after=turns.retry_after()) from None

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """The additions to all answers. Raises Refusal for a failure of the engine."""
        self._asked = True
        try:
            source = self._one(0) if self.ask.answers == 1 else self._several()
            async with contextlib.aclosing(source) as merged:
                async for delta in merged:
                    self._sent[delta.answer] += delta.text
                    self._called += delta.written
                    self._finish = delta.finish or self._finish
                    yield delta
        except EngineRefusal as error:
            raise unfit(f"{str(error).rstrip('.')}.") from error
        except EngineFault as error:
            log.error("the engine failed: %s", type(error.__cause__ or error).__name__)  # its words may be the model's
            raise Refusal(503, "The engine failed. Try again soon.", "engine_failed", retry_after=2.0) from error

    async def _one(self, number: int) -> AsyncGenerator[Delta, None]:
        """The additions to one answer, through its guard."""
        guard = self._guards.output()
        tools = ToolText(lambda text: self._masked(text, guard)) if _tools(self.ask) else None
        shown = _Shown() if self._sampling.logprobs is not None else None
        sampling = self._sampling
        if sampling.seed is not None and number:
            sampling = replace(sampling, seed=sampling.seed + number)
        try:
            async with contextlib.aclosing(self.served.engine.generate(self._ids, sampling)) as pieces:
                async for piece in pieces:
                    self.served.health.token()
                    if new := len(piece.ids) or bool(piece.text):
                        self.observed.tokens(new)
                    text = piece.text
                    if tools is not None:  # first: what is joined where a call was must be seen whole
                        text = tools.feed(text) + (tools.finish() if piece.finish else "")
                    text = guard.feed(text)
                    if piece.finish:
                        text += guard.finish()
                    choices = shown.due(piece, text) if shown else ()
                    if guard.refused is not None:
                        yield Delta(number, text, choices, "content_filter")
                        break
                    finished = tools is not None and piece.finish
                    calls = tuple(tools.calls) if tools is not None and finished else ()
                    written = tuple(tools.written) if tools is not None and finished else ()
                    if piece.finish or text or choices or piece.prompt:
                        finish: FinishReason | None = piece.finish
                        if calls and finish == "stop":
                            finish = "tool_calls"
                        yield Delta(number, text, choices, finish, piece.stop, calls, written, piece.prompt)
        finally:
            for finding in guard.findings:
                self.observed.finding(finding)

    def _masked(self, text: str, guard: OutputGuard) -> str:
        """A text of its own as it may be sent. If it may not, `guard` refuses the answer."""
        own = self._guards.output()
        masked = own.feed(text) + own.finish()
        guard.refused = guard.refused or own.refused
        for finding in own.findings:
            self.observed.finding(finding)
        return masked

    async def _several(self) -> AsyncGenerator[Delta, None]:
        """The additions to several answers, as they come."""
        queue: asyncio.Queue[Delta | BaseException | None] = asyncio.Queue()

        async def collect(number: int) -> None:
            try:
                async with contextlib.aclosing(self._one(number)) as deltas:
                    async for delta in deltas:
                        queue.put_nowait(delta)
                queue.put_nowait(None)
            except (EngineFault, EngineRefusal) as error:
                queue.put_nowait(error)

        tasks = [asyncio.create_task(collect(number)) for number in range(self.ask.answers)]
        try:
            left = len(tasks)
            while left:
                item = await queue.get()
                if isinstance(item, BaseException):
                    raise item
                if item is None:
                    left -= 1
                else:
                    yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def count(self) -> Usage:
        """The tokens of what was sent so far, by the release's tokenizer."""
        sent = [text for text in (*self._sent, *self._called) if text]
        self.usage = Usage(self.usage.prompt, sum(map(self.served.release.count, sent)))
        return self.usage

    async def book(self) -> Usage:
        """Free the turn and book what was sent, before the last byte: the client's next request may go to another
        process, and one that doesn't read delays nobody."""
        await self._stack.aclose()
        usage = self.count()
        if self._admission is not None:
            self._cost = self._admission.settle(usage.prompt, usage.completion)
            await self._admission.booked()
        return usage

    async def close(self, refusal: Refusal | None, *, gone: bool = False) -> None:
        """Free the turn, book what was sent, and end the observation, once. A request that was refused, or left before
        its turn, costs nothing. `gone`: the client left."""
        if self._closed:
            return
        self._closed = True
        usage = self.count() if self.begun or (self._asked and refusal is None) else Usage(0, 0)
        try:
            await self._stack.aclose()
        finally:
            if self._admission is not None:
                self._cost = self._admission.settle(usage.prompt, usage.completion)
            self.observed.end(
                status=refusal.status if refusal else 200,
                finish="error" if refusal and self.begun else self._finish,
                prompt_tokens=usage.prompt,
                completion_tokens=usage.completion,
                cost=self._cost,
                request_text=_text(self.ask),
                answer_text="\n".join([*self._sent, *self._called]),
                engine=self.served.engine.name,
                client_gone=gone,
                reason=refusal.code if refusal else None,
            )


class _Shown:
    """Reports the probabilities of tokens whose text was released. Once a guard has changed the text, none: they would
    tell what it masked."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, TokenChoice]] = []
        self._raw, self._released, self._open = "", "", True

    def due(self, piece: Piece, released: str) -> tuple[TokenChoice, ...]:
        """The choices of the tokens that `released` completes."""
        self._raw += piece.text
        self._released += released
        self._waiting += [(len(self._raw), choice) for choice in piece.choices]
        self._open = self._open and self._raw.startswith(self._released)
        if not self._open:
            return ()
        due = [choice for end, choice in self._waiting if end <= len(self._released)]
        self._waiting = [(end, choice) for end, choice in self._waiting if end > len(self._released)]
        return tuple(due)


def _size(ask: Ask) -> int:
    """About the bytes of a prompt."""
    if isinstance(ask.prompt, Conversation):
        messages = ask.prompt.messages
        return sum(len(message["content"]) for message in messages) + 64 * len(messages) + len(str(ask.prompt.tools))
    return len(ask.prompt)


def _tools(ask: Ask) -> bool:
    return isinstance(ask.prompt, Conversation) and bool(ask.prompt.tools)


def _text(ask: Ask) -> str:
    """The text of a request, for the audit log."""
    if isinstance(ask.prompt, Conversation):
        return "\n".join(str(message["content"]) for message in ask.prompt.messages)
    return ask.prompt if isinstance(ask.prompt, str) else " ".join(map(str, ask.prompt))
