"""Opens what answers, by the command's options: for one answer to stdout, or for a conversation."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from flows.commands.chat.conversation import Conversation
from flows.commands.chat.lines import Lines, checked_text
from flows.commands.chat.printing import SILENT, Printed
from flows.session import DEFAULT, last_run
from flows.stop import stoppable
from flows.tables import Terminal
from storage.errors import ServerError
from storage.manifest import SUMS
from storage.store import Store
from tasks.serve.chat.answerer import Answerer, Manner

if TYPE_CHECKING:
    from models.runtimes.protocol import Message


@dataclass(frozen=True)
class Of:
    """The release to open: of a store or in a folder, by default that of the store's last run."""

    store: str
    ref: str | None = None
    format: str | None = None


@dataclass(frozen=True)
class At:
    """The server to ask: its address, the variable with its key, and a model there, by default its first."""

    url: str
    key_env: str | None = None
    model: str | None = None


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
def talk(console: Console, where: Of | At, prompt: str | None, manner: Manner) -> None:
    """Answer `prompt`, or hold a conversation. Raises StoreError for a ref that isn't a release, ConfigError, and
    ServerError."""
    from tasks.checks.extras import need

    need("serve", "gristmill chat")
    prompt = None if prompt is None else checked_text(prompt)
    with stoppable() as stopped:
        try:
            with _opened(where) as answerer:
                if prompt is not None:
                    _answer_once(console, answerer, prompt, manner)
                else:
                    Conversation(console, answerer, manner, Lines(console)).hold(stopped)
        except KeyboardInterrupt:
            raise SystemExit(stopped.exit_code) from None


def _opened(where: Of | At) -> AbstractContextManager[Answerer]:
    if isinstance(where, At):
        from tasks.serve.chat.server import opened_server

        return opened_server(where.url, where.key_env, where.model)
    return _opened_release(where)


@contextmanager
def _opened_release(where: Of) -> Iterator[Answerer]:
    """The release's GGUF file in llama.cpp's server, or else its best format in the format's own runtime. A release
    with GGUF files only has its tokenizer in them, so that only its own runtime can apply the template."""
    from models.tokenizer import NEEDED_FILES
    from tasks.export.formats import FORMATS
    from tasks.export.formats.gguf import Gguf
    from tasks.export.release import best_format, open_release
    from tasks.serve.chat.engine import opened_engine
    from tasks.serve.chat.runtime import RuntimeAnswerer

    folder, name = _found(where)
    format = best_format(folder, where.format)
    whole = all((folder / file).is_file() for file in ("config.json", *NEEDED_FILES))
    if whole and isinstance(FORMATS[format], Gguf):
        with opened_engine(folder, name, format) as engine:
            yield engine
        return
    model = open_release(folder, format=format)
    try:
        yield RuntimeAnswerer(model, f"{name}, {format}")
    finally:
        model.close()


def _found(where: Of) -> tuple[Path, str]:
    """The folder of a checked release, and its name."""
    from tasks.export.release import find_release, release_name
    from tasks.export.release_folder import verify_unsigned

    if where.ref and Path(where.ref, SUMS).is_file():
        verify_unsigned(Path(where.ref))
        return Path(where.ref), where.ref
    store = Store(where.store)
    store.check_exists()
    last = None if where.ref else last_run(store, "export")
    name = release_name(where.ref or (last.profile if last else DEFAULT))
    return find_release(store, name).path, name


def _answer_once(console: Console, answerer: Answerer, prompt: str, manner: Manner) -> None:
    """Print the answer, and nothing else to stdout."""
    system: list[Message] = [] if manner.system is None else [{"role": "system", "content": manner.system}]
    printed = Printed(console)
    try:
        ended = answerer.answer([*system, {"role": "user", "content": prompt}], manner, printed.say)
    finally:
        if printed.text:
            printed.end()
    if ended.finish is None:
        raise ServerError("The server ended its answer without a reason.", "Ask again.")
    if not printed.text:
        console.print()
        Terminal(stderr=True).print(f"[dim]{SILENT}[/]")
