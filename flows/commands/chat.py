"""`gristmill chat`: chat with a release, in llama.cpp if it has a GGUF file, otherwise in transformers."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console

from flows.session import DEFAULT, last_run
from flows.tables import Terminal
from storage.errors import ConfigError, harmless
from storage.store import Store

if TYPE_CHECKING:
    from models.runtimes.protocol import ModelRuntime


SILENT = "(nothing: it ended its answer at once)"


@dataclass(frozen=True)
class Manner:
    """The settings of answers."""

    tokens: int
    temperature: float
    system: str | None


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Within the block, libraries print no warnings and no progress bars into the conversation."""
    level, bars = logging.root.manager.disable, os.environ.get("TQDM_DISABLE")
    logging.disable(logging.WARNING)
    os.environ["TQDM_DISABLE"] = "1"
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(level)
        os.environ.pop("TQDM_DISABLE") if bars is None else os.environ.update(TQDM_DISABLE=bars)


@quiet_libraries()
def talk(
    console: Console, store_url: str, ref: str | None, prompt: str | None, manner: Manner, format: str | None
) -> None:
    """Answer `prompt`, or hold a conversation until an empty line, with the release of `ref`, by default that of the
    store's last run. Raises StoreError if the ref is not a release."""
    from tasks.checks.extras import need
    from tasks.export.release import find_release, open_release

    need("serve", "gristmill chat")
    store = Store(store_url)
    store.check_exists()
    last = None if ref else last_run(store, "export")
    profile, at, number = (ref or (last.profile if last else DEFAULT)).partition("@")
    name = f"{profile}{'' if '/' in profile else '/export'}{at}{number}"
    artifact = find_release(store, name)
    model = open_release(artifact.path, format=format)
    messages = [] if manner.system is None else [{"role": "system", "content": manner.system}]
    if prompt is not None:
        answer = _answer(model, [*messages, {"role": "user", "content": prompt}], manner)
        console.print(harmless(answer), markup=False)
        if not answer:
            Terminal(stderr=True).print(f"[dim]{SILENT}[/]")
        return
    console.print(f"[dim]{name}, {artifact.location}: an empty line ends the conversation[/]")
    while question := _question(console):
        messages.append({"role": "user", "content": question})
        answer = _answer(model, messages, manner)
        messages.append({"role": "assistant", "content": answer})
        console.print(harmless(answer) or SILENT, markup=False)


def _question(console: Console) -> str:
    """The person's next message, or empty at the end of the input."""
    try:
        return console.input("[bold]> [/]").strip()
    except EOFError:
        return ""


def _answer(model: ModelRuntime, messages: list[dict[str, str]], manner: Manner) -> str:
    """The next turn. Raises ConfigError if the runtime refuses the conversation, such as one beyond the context."""
    from models.runtimes.protocol import RuntimeFault

    try:
        return model.chat(messages, manner.tokens, manner.temperature)
    except RuntimeFault as error:
        without = " Omit --system if its chat template doesn't support a system prompt." if manner.system else ""
        raise ConfigError(f"{error}.", f"Start a new, shorter conversation.{without}") from error
