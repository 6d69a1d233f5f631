"""Patterns that Prefect's server holds parameters against, which runs no Python of ours: texts without credentials, and
the keys of a profile.

What a person types has any length, so no pattern may look at the same text again and again: each part that repeats
stops where the next can begin, or has a limit, and the time grows with the length alone.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from storage.credentials import IN_NAMES, NAMES, PORT, TOKEN


def _any_case(words: str) -> str:
    return "".join(f"[{one.upper()}{one}]" if one.isalpha() else one for one in words)


def _codes(*characters: str) -> str:
    """The percent-encoding of one of these, though it be encoded twice."""
    return f"%(?:25)*(?:{'|'.join(_any_case(f'{ord(one):02x}') for one in characters)})"


def _one_of(*characters: str) -> str:
    """One of these, as it is or encoded."""
    return f"(?:[{''.join(characters)}]|{_codes(*characters)})"


_AT, _EQUALS, _SLASH = _one_of("@"), _one_of("="), _one_of("/")
_COLON = _one_of(":")
_SCHEME = r"[A-Za-z0-9+.\-]"  # the last character of one
_URL = rf"{_SCHEME}{_COLON}{_SLASH}{_SLASH}"
_PART = rf"(?:[^\s/?#@:\[%]|(?!{_codes('/', '?', '#', '@', ':', '[')})%)*"  # of a URL, up to what parts it
_PASSWORD = rf"(?:{_SCHEME}://[^\s/?#@:\[]*:|{_URL}{_PART}{_COLON})(?!{PORT})"  # if an @ follows
_IN_WORD = r"(?<!\S)(?:(?!{0})\S)*{0}".format  # the first of a word
_IN_URL = _IN_WORD(_URL)
_NEXT = _one_of("?", "&", ";", "#")
_NAME = rf"(?:(?:{_any_case(IN_NAMES)})\w{{0,60}}|(?<=[?&;#.\-])(?:{_any_case(NAMES)}))"
_NAMED = rf"{_IN_URL}(?:(?!{_NEXT})\S)*{_NEXT}\S*?{_NAME}{_EQUALS}[^&;#\s\"'<>]"
_LETTER = r"%(?:25)*(?:3\d|[46][1-9A-Fa-f]|[57][0-9Aa]|5[Ff]|2[DdEe])"
_DISGUISED = rf"{_IN_URL}\S*?{_NEXT}[^=\s?&%]{{0,60}}{_LETTER}[^=\s?&]{{0,60}}{_EQUALS}"  # a name that is encoded
_TOKEN_OF_HTTP = rf"[Hh][Tt][Tt](?:[Pp]|[Pp](?=[Ss])){_URL}[^\s/?#@]{{1,300}}{_AT}"
_WITH_SPACES = rf"(?:[^=]*=)?\s*[\"']?(?:(?!{_PASSWORD})[^\s/])*{_PASSWORD}[\s\S]*{_AT}"  # where the text is a URL
_ANYWHERE = rf"{_IN_WORD(_PASSWORD)}\S*{_AT}|{_TOKEN_OF_HTTP}|{_NAMED}|{_DISGUISED}|{TOKEN}"

NO_CREDENTIALS = rf"^(?!{_WITH_SPACES}|[\s\S]*(?:{_ANYWHERE}))"

OVERRIDE = r"^\w+(\.[^=]*[^=\s])?="
CHARACTERS = r"^(?=[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]*$)"  # that YAML takes and a database keeps
# The salt is a password by another name, and stands as {env: NAME}, {file: PATH} or null
_SPACES = r"[^\S\n]*"
_NULL = rf"{_SPACES}(?:(?:null|Null|NULL|~){_SPACES})?(?:[,}}]|$|\n\s*[\w\"']+\s*:)"
_HIDDEN = rf"\s*(?:\{{\s*)?[\"']?(?:env|file)[\"']?\s*:|{_NULL}"
_SALT = rf"\bsalt[\"']?\s*:(?!{_HIDDEN})"
_SALTS = rf"\.pii\.salt=(?!{_HIDDEN})|\.pii=[\s\S]*{_SALT}|=(?:(?!pii)[\s\S])*pii[\s\S]*{_SALT}"
NO_SALT = rf"^(?!filter(?:{_SALTS}))"


@functools.cache  # Prefect asks for each flow
def keys(*groups: type[BaseModel]) -> str:
    """What matches the keys of these groups, and those below them: of groups in them, and names of the user's own in a
    mapping. A list has none: it is given whole."""
    found: dict[str, list[Any]] = {}
    for group in groups:
        for name, field in group.model_fields.items():
            found.setdefault(name, []).append(field.annotation)
    return "|".join(rf"{name}{_dot(_below(annotations))}" for name, annotations in found.items())


def _below(annotations: Sequence[Any]) -> str:
    """What may follow the dot after a key of one of these types; empty for none."""
    kinds = [kind for annotation in annotations for kind in _kinds(annotation)]
    groups = dict.fromkeys(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))
    values = [get_args(kind)[1] for kind in kinds if get_origin(kind) in (dict, Mapping)]
    ways = [keys(*groups)] if groups else []
    ways += [rf"[^.=]+{_dot(_below(values))}"] if values else []
    ways += ["[^=]+"] if Any in kinds else []
    return "|".join(ways)


def _kinds(annotation: Any) -> list[Any]:
    """The types of a union, without what is said of them."""
    if get_origin(annotation) in (Annotated, Union, UnionType):
        return [kind for one in get_args(annotation) for kind in _kinds(one)]
    return [annotation]


def _dot(below: str) -> str:
    return rf"(\.({below}))?" if below else ""
