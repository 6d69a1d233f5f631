"""`gristmill chat`: talk to a release, in llama.cpp where it holds a GGUF file and in transformers otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from storage import refs
from storage.errors import ConfigError, StoreError
from storage.store import Store

if TYPE_CHECKING:
    from models.runtimes.protocol import ModelRuntime


def talk(console: Console, store_url: str, ref: str, prompt: str | None) -> None:
    """Answer `prompt`, or hold a conversation until an empty line. Raises StoreError when the ref is no release."""
    from tasks.export.release import open_release

    store = Store(store_url)
    store.check_exists()
    location = refs.resolve(store, ref)
    if not location.startswith("export/"):
        releases = [name for name in refs.names(store) if name.endswith("/export")]
        advice = f"Name a release: {', '.join(releases)}" if releases else "Make one with `gristmill run PROFILE`"
        raise StoreError(f"{ref} is no release but an artifact of {location.partition('/')[0]}.", f"{advice}.")
    artifact = store.get(location)
    model = open_release(artifact.path)
    messages: list[dict[str, str]] = []
    if prompt is not None:
        console.print(_answer(model, [{"role": "user", "content": prompt}]), markup=False)
        return
    console.print(f"[dim]{artifact.location}: an empty line ends the conversation[/]")
    while question := console.input("[bold]> [/]").strip():
        messages.append({"role": "user", "content": question})
        answer = _answer(model, messages)
        messages.append({"role": "assistant", "content": answer})
        console.print(answer, markup=False)


def _answer(model: ModelRuntime, messages: list[dict[str, str]]) -> str:
    """The next turn. Raises ConfigError when the runtime refuses the conversation, such as one beyond the context."""
    from models.runtimes.protocol import RuntimeFault

    try:
        return model.chat(messages)
    except RuntimeFault as error:
        raise ConfigError(f"{error}.", "Start a new, shorter conversation.") from error
