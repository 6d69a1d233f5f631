"""Checks of a row's text: a string that isn't empty, can be written as UTF-8, and has no NUL."""

from __future__ import annotations

import json
from typing import Any

from tasks.download.pairs.form import Message, Values, bad

KINDS = {
    type(None): "null",
    str: "text",
    bool: "true or false",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
}


MEDIA = ("images", "videos", "audios", "image", "video", "audio", "image_url")  # beside a text or a turn's content


def refuse_media(values: Values, where: str = "") -> None:
    """Raises BadDocument for a row, or a turn of one, with images, video or audio."""
    if media := next((key for key in MEDIA if values.get(key)), None):
        raise bad("not_text", f"{where}{media} is not empty, but models here read only text")


def text_of(value: Any, key: str) -> str:
    """The text, as it is. Raises BadDocument naming `key`."""
    if not isinstance(value, str):
        raise bad("no_text", f"{key} is {kind_of(value)}, not a text")
    if not value.strip():
        raise bad("empty", f"{key} is empty")
    if "\0" in value:
        raise bad("nul", f"{key} contains a NUL")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise bad("lone_surrogate", f"{key} contains half of a surrogate pair") from error
    return value


def optional_text(row: Values, key: str) -> str | None:
    """The text of a key that may be missing, null or blank."""
    value = row.get(key)
    blank = value is None or (isinstance(value, str) and not value.strip())
    return None if blank else text_of(value, key)


def kind_of(value: Any) -> str:
    """The kind of a value, for an error."""
    return KINDS.get(type(value), type(value).__name__)


def as_json(value: Any, key: str) -> str:
    """A value as JSON, with dates of Parquet as Python writes them. Raises BadDocument for endlessly nested values."""
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (RecursionError, ValueError, TypeError) as error:
        raise bad("no_text", f"{key} can't be written as JSON") from error


def user(text: str) -> Message:
    """A turn of the user."""
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    """A turn of the assistant."""
    return {"role": "assistant", "content": text}


def system_of(row: Values) -> list[Message]:
    """The system prompt that a row has besides its turns, if any."""
    text = optional_text(row, "system")
    return [] if text is None else [{"role": "system", "content": text}]
