"""Reads the body of a request: JSON without surprises, known fields of known types.

A field that is neither known nor on the list of ignored ones is refused, so that a client never believes in a setting
without effect.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

from tasks.serve.api.errors import unfit
from tasks.serve.engines.protocol import Sampling

IGNORED = (  # fields of OpenAI's API that change no answer
    "metadata",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
)
MOST_STOPS = 16
LONGEST_STOP = 256  # characters
MOST_LOGPROBS = 20
DEEPEST = 64  # levels of JSON
MOST_DIGITS = 20  # of a whole number of 64 bits, with its sign
LONGEST_GRAMMAR = 64 << 10  # characters of a grammar or a schema


def parse(body: bytes) -> dict[str, Any]:
    """The object of a body. Raises Refusal for anything else, and for what can't be written as JSON again: NaN, a key
    that is given twice, a number of over 64 bits, half of a surrogate pair, and more levels than DEEPEST."""
    try:
        text = body.decode("utf-8")
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_number, parse_int=_whole_number)
    except UnicodeDecodeError:
        raise unfit("The body is not UTF-8.", code="invalid_json") from None
    except RecursionError:
        raise unfit("The body is nested too deep.", code="invalid_json") from None
    except ValueError as error:
        raise unfit(f"The body is not JSON: {_short(str(error))}.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise unfit("The body is not a JSON object.", code="invalid_json")
    if is_deeper(value, DEEPEST):
        raise unfit("The body is nested too deep.", code="invalid_json")
    if b"\\ud" in body.lower():  # what else is in UTF-8 has no half of a pair
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise unfit("The body has half of a surrogate pair.", code="invalid_json") from None
    return value


def is_deeper(value: Any, levels: int) -> bool:
    """Whether JSON is nested deeper than this."""
    level = [value]
    for _ in range(levels):
        level = [
            inner
            for one in level
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {_short(repr(twice))} is given twice")
    return found


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _whole_number(digits: str) -> int:
    if len(digits) > MOST_DIGITS or not -(2**63) <= (value := int(digits)) < 2**64:
        raise ValueError("a whole number has more than 64 bits")
    return value


def _short(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:117]}…"


class Fields:
    """The fields of a body. Each is read once, then `end` refuses those that nobody read."""

    def __init__(self, body: Mapping[str, Any], ignored: Collection[str] = IGNORED) -> None:
        self._left = {name: value for name, value in body.items() if name not in ignored}

    def end(self) -> None:
        """Raises Refusal for a field that wasn't read."""
        if self._left:
            name = _short(next(iter(self._left)))
            raise unfit(f"The field {name!r} is not supported.", name, "unsupported_field")

    def raw(self, name: str) -> Any:
        """A value of any type, None if it is missing."""
        return self._left.pop(name, None)

    def text(self, name: str, default: str | None = None) -> str | None:
        """A text."""
        value = self._typed(name, str, "a text")
        return default if value is None else str(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """A boolean."""
        value = self._typed(name, bool, "true or false")
        return default if value is None else bool(value)

    def whole(self, name: str, least: int, most: int, default: int | None = None) -> int | None:
        """A whole number within bounds."""
        value = self._left.pop(name, None)
        if value is None:
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise unfit(f"{name} is not a whole number.", name)
        if not least <= value <= most:
            raise unfit(f"{name} is {_short(str(value))}, but must be between {least:,} and {most:,}.", name)
        return value

    def number(self, name: str, least: float, most: float, default: float) -> float:
        """A number within bounds."""
        value = self._left.pop(name, None)
        if value is None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise unfit(f"{name} is not a number.", name)
        if not least <= value <= most:
            raise unfit(f"{name} is {_short(f'{value:g}')}, but must be between {least:g} and {most:g}.", name)
        return float(value)

    def section(self, name: str) -> Mapping[str, Any] | None:
        """An object."""
        value = self._typed(name, dict, "an object")
        return None if value is None else dict(value)

    def rows(self, name: str) -> list[Any] | None:
        """A list."""
        value = self._typed(name, list, "a list")
        return None if value is None else list(value)

    def stops(self, name: str) -> tuple[str, ...]:
        """Texts that end an answer."""
        value = self._left.pop(name, None)
        values = [] if value is None else [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(one, str) and one for one in values):
            raise unfit(f"{name} is neither a text nor a list of texts.", name)
        if len(values) > MOST_STOPS or any(len(one) > LONGEST_STOP for one in values):
            raise unfit(f"{name} has more than {MOST_STOPS} texts, or one of over {LONGEST_STOP} characters.", name)
        return tuple(values)

    def _typed(self, name: str, kind: type, words: str) -> Any:
        value = self._left.pop(name, None)
        if value is not None and not isinstance(value, kind):
            raise unfit(f"{name} is not {words}.", name)
        return value


def text_of(value: Any, name: str) -> str:
    """A text of a request. Raises Refusal for another type."""
    if not isinstance(value, str):
        raise unfit(f"{name} is not a text.", name)
    return value


def sampling(fields: Fields, *, max_tokens: int | None, logprobs: int | None) -> Sampling:
    """The settings that OpenAI's two routes share. `max_tokens` None becomes 0: whatever the context leaves."""
    schema, grammar = _form(fields)
    return Sampling(
        max_tokens=max_tokens or 0,
        temperature=fields.number("temperature", 0, 2, 1.0),
        top_p=fields.number("top_p", 0, 1, 1.0),
        top_k=fields.whole("top_k", -1, 1_000_000, 0) or 0,
        min_p=fields.number("min_p", 0, 1, 0.0),
        presence_penalty=fields.number("presence_penalty", -2, 2, 0.0),
        frequency_penalty=fields.number("frequency_penalty", -2, 2, 0.0),
        repetition_penalty=fields.number("repetition_penalty", 0.01, 10, 1.0),
        seed=fields.whole("seed", -(2**63), 2**63 - 1),
        stop=fields.stops("stop"),
        logprobs=logprobs,
        json_schema=schema,
        grammar=grammar,
    )


def _form(fields: Fields) -> tuple[Mapping[str, Any] | None, str | None]:
    """The JSON schema and the grammar that an answer must follow."""
    grammar, wanted = fields.text("grammar"), fields.section("response_format")
    schema: Mapping[str, Any] | None = None
    if wanted is not None:
        kind = wanted.get("type")
        if kind == "json_object":
            schema = {"type": "object"}
        elif kind == "json_schema":
            inner = wanted.get("json_schema")
            schema = inner.get("schema") if isinstance(inner, Mapping) else None
            if not isinstance(schema, Mapping):
                raise unfit("response_format.json_schema.schema is not an object.", "response_format")
        elif kind != "text":
            raise unfit("response_format.type is none of text, json_object and json_schema.", "response_format")
    if schema is not None and grammar is not None:
        raise unfit("An answer can't follow both a schema and a grammar.", "grammar")
    written = grammar if grammar is not None else json.dumps(schema) if schema is not None else ""
    if len(written) > LONGEST_GRAMMAR:
        raise unfit(
            f"The schema or grammar has more than {LONGEST_GRAMMAR:,} characters.",
            "response_format" if grammar is None else "grammar",
        )
    return schema, grammar


def contents(value: Any, name: str) -> str:
    """The text of a message: a text, or a list of parts of type text, joined."""
    if isinstance(value, list):
        parts = []
        for number, part in enumerate(value):
            if not isinstance(part, Mapping) or part.get("type") not in ("text", "input_text"):
                kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
                raise unfit(f"{name}.{number} is of type {_short(str(kind))}, but the model reads text only.", name)
            parts.append(text_of(part.get("text"), f"{name}.{number}.text"))
        return "".join(parts)
    return text_of(value, name)
