"""The stage `prompts`: what all models are asked, with an id for each, as an artifact that their answers depend on."""

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
FORM = 'Write a line each: {"id": "…", "prompt": "…"}, or {"id": "…", "messages": [{"role": "user", "content": "…"}]}.'


def fingerprint(config: PromptsConfig) -> dict[str, str]:
    """The SHA-256 of the file of prompts. Raises SourceError for one that can't be read."""
    if config.file is None:
        return {}
    path = Path(config.file).expanduser()
    try:
        return {"prompts": remembered_digests([path])[path]}
    except OSError as error:
        raise SourceError(f"The file of prompts {path} can't be read: {error.strerror}.", "Check the path.") from error


@stage(version=1, part_of="evaluate", sources=fingerprint)
def prompts(config: PromptsConfig, out: Output) -> None:
    """Write prompts.jsonl: `id` and `messages`, in the order in which they are given."""
    rows = list(read_prompts(config))
    write_json_lines(out.path / FILE, rows)
    out.count(prompts=len(rows), summary=f"{len(rows):,} prompts")


def read_prompts(config: PromptsConfig) -> Iterator[dict[str, Any]]:
    """The prompts with their ids. Raises SourceError for no prompt, for one that is none, and for an id or a prompt
    that stands there twice."""
    seen: dict[str, int] = {}
    number = 0
    for number, row in enumerate(_given(config), 1):
        messages = _messages(row)
        if isinstance(messages, str):
            raise SourceError(f"{_where(config)} {number}: {messages}.", FORM)
        given = row.get("id") if isinstance(row, dict) else None
        id = _id(messages) if given is None else str(given)
        if id in seen:
            same = "its id" if given is not None else "it"
            raise SourceError(
                f"{_where(config)} {number}: {same} stands at {seen[id]} already.", "Leave one of them out."
            )
        seen[id] = number
        yield {"id": id, "messages": messages}
    if not number:
        raise SourceError("There is no prompt to ask.", "Give evaluate.side_by_side prompts, or a file of them.")


def check_prompts(config: PromptsConfig) -> None:
    """Read every prompt once. Raises SourceError as `read_prompts` and `fingerprint`."""
    fingerprint(config)
    for _ in read_prompts(config):
        pass


def load_prompts(artifact: Artifact) -> list[dict[str, Any]]:
    """The rows of the artifact."""
    return list(read_json_lines(artifact.path / FILE))


def _where(config: PromptsConfig) -> str:
    return f"{config.file}, line" if config.file else "Prompt"


def _given(config: PromptsConfig) -> Iterator[Any]:
    if config.file is None:
        yield from ({"prompt": prompt} for prompt in config.prompts)
        return
    try:
        yield from read_json_lines(Path(config.file).expanduser())
    except (ValueError, OSError) as error:
        raise SourceError(f"{config.file} is no file of prompts: {error}.", FORM) from error


def _messages(row: Any) -> list[dict[str, str]] | str:
    """The conversation of a row; or what is wrong with it."""
    if not isinstance(row, dict) or ("prompt" in row) == ("messages" in row):
        return "it has neither `prompt` nor `messages`, or both"
    if isinstance(row.get("id"), bool | float | list | dict) or row.get("id") == "":
        return "its id is no text"
    given = row.get("prompt", row.get("messages"))
    turns = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(turns, list) or not turns:
        return "its prompt is neither a text nor a list of messages"
    found = []
    for turn in turns:
        role, content = (turn.get("role"), turn.get("content")) if isinstance(turn, dict) else (None, None)
        if role not in ROLES or not isinstance(content, str) or not content.strip():
            return "a message has no role of system, user or assistant, or no text"
        try:
            content.encode()
        except UnicodeEncodeError:
            return "it has half of a character (a lone surrogate)"
        found.append({"role": str(role), "content": content})
    return found if found[-1]["role"] == "user" else "its last message is not the user's"


def _id(messages: list[dict[str, str]]) -> str:
    return hashlib.sha256(json.dumps(messages, sort_keys=True).encode()).hexdigest()[:16]
