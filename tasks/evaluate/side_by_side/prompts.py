"""The stage `prompts`: the prompts for all models, with an id each, as an artifact that their answers depend on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from storage.artifact import Artifact
from storage.digest_cache import remembered_digests
from storage.errors import SourceError
from storage.shards.lines import read_json_lines, write_json_lines
from tasks.evaluate.side_by_side.config import PromptsConfig
from tasks.stage import stage
from tasks.stage.output import Output

FILE = "prompts.jsonl"
ROLES = ("system", "user", "assistant")
FORM = (
    'Write each as a line {"id": "…", "prompt": "…"}, or {"id": "…", "messages": [{"role": "user", "content": "…"}]}.'
)


def fingerprint(config: PromptsConfig) -> dict[str, str]:
    """The SHA-256 of the file of prompts. Raises SourceError for a file that can't be read."""
    if config.file is None:
        return {}
    path = Path(config.file).expanduser()
    try:
        return {"prompts": remembered_digests([path])[path]}
    except OSError as error:
        raise SourceError(f"The file of prompts {path} can't be read: {error.strerror}.", "Check the path.") from error


@stage(version=1, part_of="evaluate", sources=fingerprint)
def prompts(config: PromptsConfig, out: Output) -> None:
    """Write prompts.jsonl: `id` and `messages`, in the given order."""
    rows = list(read_prompts(config))
    write_json_lines(out.path / FILE, rows)
    out.count(prompts=len(rows), summary=f"{len(rows):,} prompts")


def read_prompts(config: PromptsConfig) -> Iterator[dict[str, Any]]:
    """Yields the prompts with their ids. Raises SourceError for no prompts, a bad one, and a repeated id or prompt."""
    seen: dict[str, int] = {}
    number = 0
    for number, row in enumerate(_rows(config), 1):
        messages = _messages(row)
        if isinstance(messages, str):
            raise SourceError(f"{_where(config)} {number}: {messages}.", FORM)
        own = row.get("id") if isinstance(row, dict) else None
        id = _id(messages) if own is None else str(own)
        if id in seen:
            same = "its id" if own is not None else "it"
            raise SourceError(f"{_where(config)} {number}: {same} repeats {seen[id]}.", "Leave one of them out.")
        seen[id] = number
        yield {"id": id, "messages": messages}
    if not number:
        raise SourceError("evaluate.side_by_side needs prompts.", "Give it prompts, or a file of them.")


def check_prompts(config: PromptsConfig) -> None:
    """Read every prompt once. Raises SourceError as `read_prompts` and `fingerprint` do."""
    fingerprint(config)
    for _ in read_prompts(config):
        pass


def load_prompts(artifact: Artifact) -> list[dict[str, Any]]:
    """The rows of the artifact."""
    return list(read_json_lines(artifact.path / FILE))


def _where(config: PromptsConfig) -> str:
    return f"{config.file}, line" if config.file else "Prompt"


def _rows(config: PromptsConfig) -> Iterator[Any]:
    if config.file is None:
        yield from ({"prompt": prompt} for prompt in config.prompts)
        return
    try:
        yield from read_json_lines(Path(config.file).expanduser())
    except (ValueError, OSError) as error:
        raise SourceError(f"{config.file} isn't a file of prompts: {error}.", FORM) from error


def _messages(row: Any) -> list[dict[str, str]] | str:
    """The conversation of a row, or a text that says what is wrong with it."""
    if not isinstance(row, dict) or ("prompt" in row) == ("messages" in row):
        return "it has neither `prompt` nor `messages`, or both"
    if isinstance(row.get("id"), bool | float | list | dict) or row.get("id") == "":
        return "its id isn't a text"
    prompt = row.get("prompt", row.get("messages"))
    turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if not isinstance(turns, list) or not turns:
        return "its prompt is neither a text nor a list of messages"
    messages = []
    for turn in turns:
        role, content = (turn.get("role"), turn.get("content")) if isinstance(turn, dict) else (None, None)
        if role not in ROLES or not isinstance(content, str) or not content.strip():
            return "a message lacks text or a role (system, user or assistant)"
        try:
            content.encode()
        except UnicodeEncodeError:
            return "it has half of a character (a lone surrogate)"
        messages.append({"role": str(role), "content": content})
    return messages if messages[-1]["role"] == "user" else "its last message isn't the user's"


def _id(messages: list[dict[str, str]]) -> str:
    return hashlib.sha256(json.dumps(messages, sort_keys=True).encode()).hexdigest()[:16]
