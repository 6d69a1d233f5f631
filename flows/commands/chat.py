"""`gristmill chat`: talk to a release in llama.cpp, through the one chat template."""

from __future__ import annotations

from rich.console import Console

from storage import refs
from storage.errors import StoreError
from storage.store import Store


def talk(console: Console, store_url: str, ref: str, prompt: str | None) -> None:
    """Answer `prompt`, or hold a conversation until an empty line. Raises StoreError when the ref has no GGUF."""
    from tasks.export.runtime import load_gguf

    store = Store(store_url)
    artifact = store.get(refs.resolve(store, ref))
    weights = sorted(artifact.path.glob("gguf/*f16.gguf")) or sorted(artifact.path.glob("gguf/*.gguf"))
    if not weights:
        raise StoreError(f"{ref} holds no GGUF file.", "Name a release, such as tiny/export.")
    model = load_gguf(weights[0])
    messages: list[dict[str, str]] = []
    if prompt is not None:
        console.print(model.chat([{"role": "user", "content": prompt}]), markup=False)
        return
    console.print(f"[dim]{artifact.location}: an empty line ends the conversation[/]")
    while question := console.input("[bold]> [/]").strip():
        messages.append({"role": "user", "content": question})
        answer = model.chat(messages)
        messages.append({"role": "assistant", "content": answer})
        console.print(answer, markup=False)
