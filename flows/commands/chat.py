"""`gristmill chat`: talk to a release, in llama.cpp where it holds a GGUF file and in transformers otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from flows.tables import harmless
from storage.errors import ConfigError
from storage.store import Store

if TYPE_CHECKING:
    from models.runtimes.protocol import ModelRuntime


def talk(console: Console, store_url: str, ref: str, prompt: str | None) -> None:
    """Answer `prompt`, or hold a conversation until an empty line. Raises StoreError when the ref is no release."""
    from tasks.export.release import find_release, open_release

    store = Store(store_url)
    store.check_exists()
    artifact = find_release(store, ref)
    model = open_release(artifact.path)
    messages: list[dict[str, str]] = []
    if prompt is not None:
        console.print(harmless(_answer(model, [{"role": "user", "content": prompt}])), markup=False)
        return
    console.print(f"[dim]{artifact.location}: an empty line ends the conversation[/]")
    while question := console.input("[bold]> [/]").strip():
        messages.append({"role": "user", "content": question})
        answer = _answer(model, messages)
        messages.append({"role": "assistant", "content": answer})
        console.print(harmless(answer), markup=False)


def _answer(model: ModelRuntime, messages: list[dict[str, str]]) -> str:
    """The next turn. Raises ConfigError when the runtime refuses the conversation, such as one beyond the context."""
    from models.runtimes.protocol import RuntimeFault

    try:
        return model.chat(messages)
    except RuntimeFault as error:
        raise ConfigError(f"{error}.", "Start a new, shorter conversation.") from error
