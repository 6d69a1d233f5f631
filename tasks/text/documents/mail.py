"""Messages of e-mail, however they are packed: the text that their author wrote, with what it quotes.

Of alternatives the plain text is taken, else the HTML. Attachments are named in the metadata, and not read.
"""

from __future__ import annotations

import binascii
import contextlib
from collections.abc import Callable, Iterator
from email import message_from_bytes
from email.errors import MessageError
from email.header import decode_header
from email.message import Message
from email.utils import collapse_rfc2231_value, parsedate_to_datetime
from typing import Any

from storage.errors import BadDocument
from tasks.text.web.encoding import decode

ENCRYPTED = ("multipart/encrypted", "application/pkcs7-mime", "application/x-pkcs7-mime")
TEXTS = ("text/plain", "text/html")
FIELDS = {"title": "subject", "from": "from"}
MOST_ATTACHMENTS = 100
WIDEST = 1000  # characters of a header
DEEPEST = 50  # parts within parts


def read_mail(content: bytes, extract: Callable[[bytes, str | None], str]) -> dict[str, Any]:
    """The text and metadata of a message. `extract` gives the text of HTML. Raises BadDocument."""
    message = message_from_bytes(content)
    if not message.keys():
        raise BadDocument("damaged_document", why="it has no header")
    attachments: list[str] = []
    texts = [_text(part, extract).strip("\n") for part in _texts(message, attachments, 0)]
    headers = {name.lower(): value for name, value in reversed([*message.raw_items()])}  # the first of each counts
    fields: dict[str, Any] = {name: _decoded(headers.get(header)) for name, header in FIELDS.items()}
    fields["date"] = _date(_decoded(headers.get("date")))
    fields["attachments"] = attachments[:MOST_ATTACHMENTS]
    return {"text": "\n\n".join(text for text in texts if text.strip()), **{name: v for name, v in fields.items() if v}}


def page_of(content: bytes) -> bytes:
    """The HTML of a page that is saved as a message (MHTML). Empty if there is none."""
    parts = message_from_bytes(content).walk()
    return next((_payload(part) for part in parts if part.get_content_type() == "text/html"), b"")


def _texts(part: Message, attachments: list[str], depth: int) -> Iterator[Message]:
    """The parts with text of a message, in order. Adds the names of those that aren't read to `attachments`."""
    kind = part.get_content_type()
    if kind in ENCRYPTED and "signed" not in str(part.get_param("smime-type", "")):
        raise BadDocument("password", why="it is encrypted")
    payload = part.get_payload() if part.is_multipart() else None
    inner = [each for each in payload if isinstance(each, Message)] if isinstance(payload, list) else None
    if depth > DEEPEST:
        raise BadDocument("nested_too_deep")
    if inner is not None and kind == "multipart/alternative":
        yield from _texts(_alternative(inner), attachments, depth + 1) if inner else ()
    elif inner is not None and kind != "message/rfc822":
        for each in inner:
            whole = each.get_payload() if kind == "multipart/digest" and each.is_multipart() else [each]
            for one in whole if isinstance(whole, list) else ():
                if isinstance(one, Message):
                    yield from _texts(one, attachments, depth + 1)
    elif (kind in TEXTS or kind.startswith("multipart/")) and part.get_content_disposition() != "attachment":
        yield part
    else:
        attachments.append(_decoded(_filename(part)) or kind)


def _alternative(parts: list[Message]) -> Message:
    """The first of several forms of a text that has plain text, or else HTML, perhaps among several parts."""
    for kind in TEXTS:
        for part in parts:
            found = (each for each in part.walk() if each.get_content_type() == kind)
            if any(each.get_content_disposition() != "attachment" and _payload(each).strip() for each in found):
                return part
    return parts[0]


def _filename(part: Message) -> str:
    return _parameter(part, "filename", "content-disposition") or _parameter(part, "name")


def _parameter(part: Message, name: str, header: str = "content-type") -> str:
    found = part.get_param(name, header=header)
    try:
        return collapse_rfc2231_value(found) if found is not None else ""
    except ValueError:  # an encoding whose name has a NUL
        return ""


def _payload(part: Message) -> bytes:
    """The bytes of a part. What its packing doesn't allow stays as it is."""
    try:
        found = part.get_payload(decode=True)
    except (ValueError, binascii.Error, AssertionError, LookupError):
        del part["Content-Transfer-Encoding"]
        found = part.get_payload(decode=True)
    return found if isinstance(found, bytes) else b""


def _text(part: Message, extract: Callable[[bytes, str | None], str]) -> str:
    declared = _parameter(part, "charset").strip("'\" ").lower() or None
    if part.get_content_type() == "text/html":
        return extract(_payload(part), declared)
    text = decode(_payload(part), declared, html=False)[0].replace("\0", "").replace("\r\n", "\n")
    return _reflowed(text, part) if part.get_param("format") == "flowed" else text


def _reflowed(text: str, part: Message) -> str:
    """A text whose lines end with a space where a paragraph goes on (RFC 3676)."""
    whole: list[str] = []
    goes_on, last_depth = False, 0
    stripped = part.get_param("delsp") == "yes"
    for line in text.split("\n"):
        depth = len(line) - len(line.lstrip(">"))
        inner = line[depth:].removeprefix(" ")
        if goes_on and depth == last_depth and inner != "-- ":
            whole[-1] += inner
        else:
            whole.append(f"{'>' * depth} {inner}" if depth else inner)
        goes_on, last_depth = inner.endswith(" ") and inner != "-- ", depth
        if goes_on and stripped:
            whole[-1] = whole[-1][:-1]
    return "\n".join(line.rstrip(" ") if line != "-- " else line for line in whole)


def _decoded(value: Any) -> str:
    """A header's text on one line. Bytes that it should have packed are decoded as a text is."""
    if value is None:
        return ""
    raw = str(value).encode("utf-8", "surrogateescape")
    text = decode(raw, None, html=False)[0]
    pieces: list[tuple[str | bytes, str | None]] = [(text, None)]
    if "=?" in text:
        with contextlib.suppress(MessageError, ValueError, binascii.Error):
            pieces = decode_header(text)
    whole = "".join(_piece(piece, charset) for piece, charset in pieces)
    return " ".join(whole.replace("\0", "").split())[:WIDEST]


def _piece(piece: str | bytes, charset: str | None) -> str:
    """A piece of a header. One between packed ones is in the form of escapes, as `decode_header` returns it."""
    if isinstance(piece, str):
        return piece
    return decode(piece, charset, html=False)[0] if charset else piece.decode("raw-unicode-escape", "replace")


def _date(written: str) -> str:
    """The date in ISO 8601, or as it is written."""
    try:
        return parsedate_to_datetime(written).isoformat() if written else ""
    except (ValueError, TypeError, IndexError, OverflowError):
        return written
