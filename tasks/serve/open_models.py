"""Opens releases with their engines: at the start, and in place of another one while the server runs."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from models.runtimes.llama_server import LlamaServerSpec
from storage.errors import ConfigError, ServerError
from tasks.export.formats import FORMATS, GUESSED
from tasks.export.formats.adapter.gguf import FILE
from tasks.serve.access import Price
from tasks.serve.config import EngineConfig, ModelConfig, ServeConfig
from tasks.serve.engines.llama_cpp import LlamaCppEngine
from tasks.serve.engines.openai_url import UrlEngine
from tasks.serve.engines.protocol import Engine, EngineFault
from tasks.serve.engines.transformers.engine import TransformersEngine, TransformersSpec
from tasks.serve.engines.vllm import VllmEngine
from tasks.serve.proof import ServedProof, change_by_base, check_served
from tasks.serve.release import Release, check_factors_only, choose_format, open_release
from tasks.serve.running import Running
from tasks.serve.served import POLL_SECONDS, Served
from tasks.serve.turns import Turns
from tasks.serve.watch import Health
from tasks.stage.machine import cores

ADAPTER = f"gguf-adapter/{FILE}"


async def open_model(running: Running, model: ModelConfig) -> None:
    """Open a release and its engine, and serve it under its name. Raises what `open_served` raises."""
    served, *adapted = await open_served(running, model, model.release)
    if twice := running.service.models.keys() & {one.name for one in (served, *adapted)}:
        await served.end()
        raise ConfigError(f"Two models have the name {min(twice)}.", "Give one a `name`.")
    _serve(running, [served, *adapted])
    if model.also is not None:
        other, *_ = await open_served(running, model, model.also, served.name)
        running.service.also[served.name] = other, model.share
        running.watch_over(other)


async def swap(running: Running, name: str, where: str) -> Served:
    """Serve another release under a name: open it beside the old one, hand new requests to it once it is proved and
    ready, and end the old one when its requests are answered. If the new one fails, before or within `swap_seconds`
    after that, the old one answers again, and the error is raised."""
    service, config = running.service, running.service.config
    old = service.models.get(name)
    if old is None or old.base is not None:
        known = ", ".join(one.name for one in service.models.values() if one.base is None)
        raise ConfigError(f"{name} is not a release that is served.", f"Choose one of {known}.")
    new, *adapted = await open_served(running, old.model, where, name)
    before = {one.name: one for one in service.models.values() if old in (one, one.base)}
    after = {one.name: one for one in (new, *adapted)}
    _serve(running, [new, *adapted])
    running.say(f"{name}: answers from {where}. The old release waits {config.swap_seconds:g} s")
    until = time.monotonic() + config.swap_seconds
    while new.ready and time.monotonic() < until:
        await asyncio.sleep(POLL_SECONDS)
    if not new.ready:
        _name(running, before.values())
        service.models |= before
        await running.end(new)
        raise ServerError(f"The engine of {where} ended, so {name} answers from the old release again.", "See its log.")
    for gone in before.keys() - after.keys():
        del service.models[gone]
    running.ending.append(asyncio.create_task(running.end(old, config.drain_seconds)))
    return new


def _serve(running: Running, opened: Sequence[Served]) -> None:
    """Answer from a release and its adapters from now on, under their names."""
    running.service.models |= {one.name: one for one in opened}
    _name(running, opened)
    running.watch_over(opened[0])


def _name(running: Running, opened: Iterable[Served]) -> None:
    for one in opened:
        about = {"digest": one.digest, "release": one.release.name, "format": one.format, "engine": one.engine.name}
        running.service.watch.serves(one.name, about)
        running.service.watch.ready(one.name, one.ready)


async def open_served(running: Running, model: ModelConfig, where: str, name: str | None = None) -> list[Served]:
    """A release with its engine, started and proved, then its adapters, which share the engine. Raises StoreError,
    DamagedArtifact, ParityError, and ServerError for an engine that doesn't start."""
    config = running.service.config
    running.say(f"Checking the release {where}")
    release = await asyncio.to_thread(open_release, where, config.store)
    adapters = model.adapters.items()
    adapted = {one: await asyncio.to_thread(open_release, at, config.store, release) for one, at in adapters}
    kind = kind_of(config.engine, release)
    format = "" if kind == "url" else choose_format(release, kind, model.format)
    context = min(config.engine.context or release.context, release.context)
    if config.engine.context is not None and context < config.engine.context:
        running.say(f"{where}: engine.context is {config.engine.context:,}, but the model sees {context:,} tokens")
    served_name = name or model.name or release.name
    engine = make_engine(config, kind, release, format, context, served_name, adapted, running.say)
    turns, for_grammars = (
        Turns(slots, config.requests.queue, config.requests.queue_seconds) for slots in (config.engine.slots, 1)
    )
    watch = running.service.watch
    health = Health(engine, release.text_ids("a"), config.watch.health, lambda now: watch.ready(served_name, now))
    served = Served(served_name, release, format, engine, turns, for_grammars, health, context, model, Price(0.0, 0.0))
    running.say(f"Starting {engine.name} with {release.name}{f', {format}' if format else ''}")
    async with contextlib.AsyncExitStack() as failing:
        failing.push_async_callback(served.end)
        try:
            await served.start()
            proofs = await _adapter_proofs(served, adapted, "adapter" if kind == "vllm" else "gguf-adapter")
            served.price = await _price(model, config.usd_per_hour, served)
        except EngineFault as error:
            raise ServerError(
                f"{where} can't be served. {error}", f"See the engine's log in {config.state}."
            ) from error
        failing.pop_all()
    running.say(
        f"{served_name}: {context:,} tokens of context, {config.engine.slots} slots. {served.proof or 'not compared'}"
    )
    if served.price.completion:
        prices = f"USD {served.price.prompt:.4g} a million prompt tokens, {served.price.completion:.4g} answered"
        running.say(f"{served_name}: {prices}")
    for one, proof in proofs.items():
        running.say(f"{one}: an adapter over {served_name}. {proof or 'not compared'}")
    return [
        served,
        *(
            replace(served, name=one, release=at, adapter=one, base=served, proof=proofs[one])
            for one, at in adapted.items()
        ),
    ]


async def _adapter_proofs(served: Served, adapted: Mapping[str, Release], format: str) -> dict[str, ServedProof | None]:
    """Compare each adapter over the served base with its own release. Raises ParityError."""
    if not served.format:
        return dict.fromkeys(adapted)
    further = change_by_base(served.release.parity, served.format)
    return {
        one: await check_served(served.engine, at.parity, format, adapter=one, further=further)
        for one, at in adapted.items()
    }


def kind_of(config: EngineConfig, release: Release) -> str:
    """The engine of a release: the chosen one, or transformers for virtual tokens, vLLM where a GPU and it are there,
    and llama.cpp for all else."""
    if config.name != "auto":
        return config.name
    if config.url is not None:
        return "url"
    if release.virtual_tokens:
        return "transformers"
    import torch

    return "vllm" if torch.cuda.is_available() and shutil.which(config.vllm.program) else "llama.cpp"


def make_engine(
    config: ServeConfig,
    kind: str,
    release: Release,
    format: str,
    context: int,
    name: str,
    adapted: Mapping[str, Release],
    say: Callable[[str], None],
) -> Engine:
    """The engine of a kind, not started. Raises ConfigError for settings that it can't honour."""
    chosen, log = config.engine, config.state / f"engine-{name.replace('/', '-')}.log"
    if kind == "url":
        if chosen.url is None:
            raise ConfigError("The engine url has no address.", "Set engine.url.url and engine.url.model.")
        return UrlEngine(chosen.url, release.tokenizer, section="engine.url")
    folder, threads = FORMATS[format].path(release.folder), chosen.threads or cores()
    if kind == "transformers":
        if lacking := [what for what, asked in (("adapters", adapted), ("a draft", chosen.draft)) if asked]:
            raise ConfigError(
                f"{name} is served by transformers, which takes no {lacking[0].removeprefix('a ')} here.",
                f"Serve {release.name} without {lacking[0]}, or by another engine.",
            )
        return TransformersEngine(TransformersSpec(str(folder), "", context, chosen.slots, threads), log)
    draft = GUESSED[format].draft(release.folder) if chosen.draft else None
    if draft is not None and not draft.exists():
        raise ConfigError(f"The release {release.name} holds no draft.", "Set engine.draft to false, or add `draft`.")
    if kind == "vllm":
        if shutil.which(chosen.vllm.program) is None:
            raise ConfigError(
                f"{chosen.vllm.program} is not installed.", "Install vLLM, or set engine.vllm.program to its path."
            )
        adapters = {one: other.folder / "adapter" for one, other in adapted.items()}
        check_factors_only(adapters)
        return VllmEngine(folder, config.state, chosen.vllm, context=context, adapters=adapters, draft=draft, say=say)
    for other in adapted.values():
        if not (other.folder / ADAPTER).is_file() or other.tokenizer_digest != release.tokenizer_digest:
            raise ConfigError(
                f"{other.name} isn't an adapter for {release.name}: it lacks {ADAPTER}, or has another tokenizer.",
                "Add gguf-adapter to export.formats, and name the base that it was trained on.",
            )
    spec = LlamaServerSpec(
        model=str(folder),
        socket="",
        context=context,
        slots=chosen.slots,
        threads=threads,
        gpu_layers=chosen.gpu_layers,
        adapters=tuple(str(other.folder / ADAPTER) for other in adapted.values()),
        draft=None if draft is None else str(draft),
    )
    return LlamaCppEngine(spec, log, list(adapted))


async def _price(model: ModelConfig, usd_per_hour: float | None, served: Served) -> Price:
    """USD per million tokens: as given, or else what this machine costs while it reads or writes as many."""
    prompt, completion = model.usd_per_million_prompt, model.usd_per_million_completion
    if usd_per_hour and (prompt is None or completion is None):
        read, written = (usd_per_hour / 3600 / pace * 1e6 for pace in await served.pace())
        prompt, completion = read if prompt is None else prompt, written if completion is None else completion
    return Price(prompt or 0.0, completion or 0.0)
