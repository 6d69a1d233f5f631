"""Opens releases with their engines: at the start, and in place of another one while the server runs."""

from __future__ import annotations

import asyncio
import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING

from models.runtimes.llama_server import LlamaServerSpec
from storage.errors import ConfigError, ServerError
from tasks.export.formats import FORMATS, GUESSED
from tasks.serve.access import Price
from tasks.serve.config import EngineConfig, ModelConfig
from tasks.serve.engines.llama_cpp import LlamaCppEngine
from tasks.serve.engines.protocol import Engine, EngineFault
from tasks.serve.release import Release, choose_format, open_release
from tasks.serve.served import Served
from tasks.serve.turns import Turns

if TYPE_CHECKING:
    from tasks.serve.server import Running

CACHE_SHARE = 0.25  # of the memory, for the keys and values of all slots


async def open_model(running: Running, model: ModelConfig) -> Served:
    """Open a release and its engine, and serve it under its name. Raises what `open_served` raises."""
    served = await open_served(running, model, model.release)
    running.service.models[served.name] = served
    running.watch_over(served)
    if model.also is not None:
        other = await open_served(running, model, model.also, served.name)
        running.service.also[served.name] = other, model.share
        running.watch_over(other)
    return served


async def swap(running: Running, name: str, where: str) -> Served:
    """Serve another release under a name: open it beside the old one, hand new requests to it once it is proved and
    ready, and end the old one when its requests are answered. If it fails, the old one stays, and the error is raised.
    """
    service = running.service
    old = service.models.get(name)
    if old is None:
        raise ConfigError(f"The model {name} is not served.", f"Choose one of {', '.join(service.models)}.")
    model = next(one for one in service.config.models if (one.name or one.release) in (name, old.release.name))
    new = await open_served(running, model.model_copy(update={"release": where}), where, name)
    service.models[name] = new
    running.watch_over(new)
    asyncio.get_running_loop().create_task(running.end(old, service.config.drain_seconds))
    return new


async def open_served(running: Running, model: ModelConfig, where: str, name: str | None = None) -> Served:
    """A release with its engine, started and proved. Raises StoreError, DamagedArtifact, ParityError, and ServerError
    for an engine that doesn't start."""
    config = running.service.config
    running.say(f"Checking the release {where}")
    release = await asyncio.to_thread(open_release, where, config.store)
    kind = kind_of(config.engine)
    format = "" if kind == "url" else choose_format(release, kind, model.format)
    context = min(config.engine.context or release.context, release.context)
    served_name = name or model.name or release.name
    engine = make_engine(config.engine, kind, release, format, context, config.state, served_name)
    turns = Turns(config.engine.slots, config.requests.queue, config.requests.queue_seconds)
    served = Served(served_name, release, format, engine, turns, context, price_of(model))
    running.say(f"Starting {engine.name} with {release.name}{f', {format}' if format else ''}")
    try:
        await served.start()
    except EngineFault as error:
        await engine.stop()
        raise ServerError(
            f"{engine.name} doesn't start with {where}: {error}.", "Its log is in the state folder."
        ) from error
    except BaseException:
        await engine.stop()
        raise
    proof = served.proof.in_words() if served.proof else "not compared"
    running.say(
        f"{served_name}: ready, {context:,} tokens of context, {config.engine.slots} slots; served = released: {proof}"
    )
    return served


def kind_of(config: EngineConfig) -> str:
    """The engine: the chosen one, or vLLM where a GPU and it are there, otherwise llama.cpp."""
    if config.kind != "auto":
        return config.kind
    if config.url is not None:
        return "url"
    import torch

    return "vllm" if torch.cuda.is_available() and importlib.util.find_spec("vllm") else "llama.cpp"


def make_engine(
    config: EngineConfig, kind: str, release: Release, format: str, context: int, state: Path, name: str
) -> Engine:
    """The engine of a kind, not started. Raises ConfigError for settings that it can't honour."""
    log = state / f"engine-{name.replace('/', '-')}.log"
    if kind == "llama.cpp":
        file = FORMATS[format].path(release.folder)
        draft = str(GUESSED[format].draft(release.folder)) if config.draft else None
        if draft is not None and not os.path.exists(draft):
            raise ConfigError(
                f"The release {release.name} holds no draft.", "Set engine.draft to false, or add `draft`."
            )
        spec = LlamaServerSpec(
            model=str(file),
            socket="",
            context=context,
            slots=config.slots,
            threads=config.threads or os.cpu_count() or 1,
            gpu_layers=config.gpu_layers,
            draft=draft,
        )
        return LlamaCppEngine(spec, log)
    raise ConfigError(f"The engine {kind} is not supported.", "Choose llama.cpp.")


def price_of(model: ModelConfig) -> Price:
    """USD per million tokens."""
    return Price(model.usd_per_million_prompt or 0.0, model.usd_per_million_completion or 0.0)
