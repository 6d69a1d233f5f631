"""E-mail addresses around each @, if they can be a person's.

The form is that of Presidio's recogniser. This module decides where an address begins in a URL, and excludes git
remotes and addresses that belong to nobody (RFC 2606 reserves `example.com` and others, programs write from
`noreply@`). It also reads an @ that a URL, HTML or a wary author writes differently: `jane%40corp.com`,
`jane&#64;corp.com`, `jane [at] corp [dot] com`, `jane at corp dot com`. Invisible characters (soft hyphens, zero-width
spaces) are part of an address. Domains are checked against the list of public suffixes in `tldextract`, without a
download.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator

from tasks.filter.pii.findings import Finding
from tasks.filter.pii.fold import AT_SIGN, DOT_ENTITY, DOT_SIGN, UNSEEN, spelled_plainly

Span = tuple[int, int]

SCORE, SPELLED = 1.0, 0.85
_LOCAL = re.compile(rf"[\w!#$%&'*+\-/=?^`{{|}}~.{UNSEEN}]{{1,128}}\Z")  # longer than in RFC 5321: a URL may precede it
_LABEL = rf"[{UNSEEN}]{{0,2}}\w[\w\-{UNSEEN}]{{0,62}}"
_DOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})+")
# A script without spaces may follow or precede an address: `写信给jane@corp.com吧`
_BEYOND_LATIN = r"[^\W\x00-\u024f\u1e00-\u1eff]"
_LATIN_DOMAIN = re.compile(rf"(?:[A-Za-z0-9\-]+\.)+[A-Za-z]{{2,24}}(?={_BEYOND_LATIN}|_)")
_TEXT_BEFORE = re.compile(rf".*{_BEYOND_LATIN}(?=[^@]*[A-Za-z0-9])", re.DOTALL)
_SPELLED_DOMAIN = re.compile(rf"\w[\w\-]{{0,62}}(?:{DOT_SIGN}\w[\w\-]{{0,62}}){{1,5}}", re.IGNORECASE)
_FIRST = re.compile(r"[\w!#$%&'*+\-^`{|}~]")
# `?mail=`, `//host/`: the text before an address in a URL. A value that is a domain itself is a bounce's (VERP)
_QUERY = re.compile(r".*[?&/|]", re.DOTALL)
# The same for an escaped address in a URL, except +, -, . and _ in it
_ESCAPED = re.compile(r".*(?:[?&/|=]|%(?!2[bde]|5f)[0-9a-f]{2})", re.DOTALL | re.IGNORECASE)
_SPELLED_LOCAL = re.compile(rf"(?<![\w.+\-])\w[\w+\-]{{0,62}}(?:{DOT_SIGN}\w[\w+\-]{{0,62}}){{0,3}}\Z", re.IGNORECASE)
_DOT_ENTITY = re.compile(DOT_ENTITY, re.IGNORECASE)
_DOT_ENTITY_BEFORE = re.compile(rf"{DOT_ENTITY}\Z", re.IGNORECASE)
_AT_SIGN = re.compile(AT_SIGN, re.IGNORECASE)
_SPOKEN = re.compile(r" (?=dot \w)", re.IGNORECASE)
_SPOKEN_AT = re.compile(r" at (?=[\w\-]+\Z)", re.IGNORECASE)
# `Shop at corp dot com` is not an address: something must identify it as one
_SAYS = re.compile(
    r"(?:\A|[\n<(:\"'|,;]|\b(?:e-?mail|mail|contact|write|reach|address|to|is|from|by))[ \t]{0,2}\Z", re.IGNORECASE
)
_NO_NAME = frozenset(
    {"us", "me", "him", "her", "them", "it", "you", "look", "see", "shop", "visit", "online", "site", "website",
     "available", "here", "more", "is", "are", "was", "be", "page", "find", "order", "if", "elif", "while", "for",
     "return", "and", "or", "not", "in", "assert"}
)  # fmt: skip
_PROGRAMS = frozenset({"git", "hg", "svn", "ssh", "gitlab", "gitea", "aur", "cvs", "anonymous", "anoncvs"})
_NOBODY = re.compile(
    r"(?:no|do[-_.]?not|donot|dont)[-_.]?reply(?:[-_+.].*)?|mailer[-_]daemon|nobody|noemail|your?[-_.]?(?:e?mail|name|user(?:name)?)"
    r"|(?:user|first|last)[-_.]?name|(?:e?mail|name|user|username)|x{2,}|foo|bar|\.{2,}|bounces?(?:[-_+][^=]*)?",
    re.IGNORECASE,
)
_RESERVED = re.compile(
    r"(?:.*\.)?(?:example(?:\.(?:com|net|org|edu))?|test|invalid|localhost|local|internal|lan)"
    r"|users\.noreply\.github\.com|(?:your|my|some)?[-_]?(?:domain|company|host|server|provider|site|org)\.(?:com|org|net|tld)"
    r"|foo\.(?:com|bar|org)|bar\.com|mail\.example",
    re.IGNORECASE,
)


def find_emails(text: str, spans: Iterable[Span]) -> Iterator[Finding]:
    """Yield the e-mail addresses at these @, however they are written."""
    for at, _ in spans:
        if text[at] == "@":
            finding = _address_at(text, "@", at)
        else:
            spaced = text[at] in "[({<" and text[at - 1 : at] == " "
            sign = _AT_SIGN.match(text, at - spaced)
            finding = _address_at(text, sign[0], sign.start()) if sign is not None else None
        if finding is not None:
            yield finding


def spoken(text: str) -> Iterator[Span]:
    """Yield the ` at ` that stand for an @, followed by a word and ` dot `."""
    for dot in _SPOKEN.finditer(text):
        at = _SPOKEN_AT.search(text, max(dot.start() - 68, 0), dot.start())
        if at is not None:
            yield at.start(), at.end()


def _address_at(text: str, sign: str, at: int) -> Finding | None:
    behind, spoken = at + len(sign), sign.lower() == " at "
    start = (
        _plain_start(text, at, max(at - 128, 0), sign == "%40")
        if sign[0] in "@%&"
        else _spelled_start(text, at, spoken)
    )
    end = _end(text, behind, spoken)
    if start is None or end is None:
        return None
    name, host = _plain(text[start:at]), _plain(text[behind:end])
    if not re.search(r"\w", name) or (sign == "@" and _is_remote(text, start, end)):
        return None
    if _NOBODY.fullmatch(name) or name.lower() in _PROGRAMS or _RESERVED.fullmatch(host):
        return None
    return Finding("EMAIL_ADDRESS", start, end, SCORE if sign == "@" else SPELLED)


def _plain(part: str) -> str:
    return part if part.isascii() and not any(sign in part for sign in " [(&") else spelled_plainly(part)


def _plain_start(text: str, at: int, lowest: int, escaped: bool) -> int | None:
    """The start, from `lowest` on, of the name that ends at `at`."""
    local = _LOCAL.search(text, lowest, at)
    if local is None or text[at - 1] == ".":
        return None
    start = local.start()
    named = (_ESCAPED if escaped else _QUERY).match(text, start, at)
    start = named.end() if named else start
    text_before = _TEXT_BEFORE.match(text, start, at)
    start = text_before.end() if text_before else start
    before, equals, value = text[start:at].rpartition("=")
    if equals and not _has_suffix(value):  # otherwise a bounce's address, which contains another one
        start += len(before) + 1
    while start < at and (not _FIRST.match(text, start) or text[start] in "'`{}"):
        start += 1
    dot = _DOT_ENTITY_BEFORE.search(text, max(start - 9, lowest), start)
    earlier = _plain_start(text, dot.start(), lowest, escaped) if dot else None
    return start if earlier is None else earlier


def _spelled_start(text: str, at: int, spoken: bool) -> int | None:
    local = _SPELLED_LOCAL.search(text, max(at - 100, 0), at)
    if local is None or local[0].lower() in _NO_NAME:
        return None
    identified = not spoken or _SAYS.search(text, max(local.start() - 12, 0), local.start())
    return local.start() if identified else None


def _end(text: str, behind: int, spoken: bool) -> int | None:
    """The end of the domain that begins at `behind`: with plain dots or, if spelled, the longest part that is one."""
    plain = None if spoken else _DOMAIN.match(text, behind, min(behind + 255, len(text)))
    if plain is not None and not _DOT_ENTITY.match(text, plain.end()):
        if not _has_suffix(_plain(plain[0])):
            plain = _LATIN_DOMAIN.match(text, behind, plain.end() + 1)
        return plain.end() if plain is not None and _has_suffix(_plain(plain[0])) else None
    spelled = _SPELLED_DOMAIN.match(text, behind, min(behind + 255, len(text)))
    ends = [behind + match.end() for match in re.finditer(r"[\w\-]+", spelled[0])] if spelled else []
    return next((end for end in reversed(ends) if _has_suffix(spelled_plainly(text[behind:end]))), None)


def _is_remote(text: str, start: int, end: int) -> bool:
    """Whether this is the location of a repository or a login, not an e-mail address."""
    if text[max(start - 3, 0) : start] == "://" or text[end : end + 2] in (":/", ":~"):
        return True
    return re.match(r":[\w\-./~]+\.git\b", text[end : end + 120]) is not None


def _has_suffix(host: str) -> bool:
    return bool(_suffixes()(host))


@functools.cache
def _suffixes() -> Callable[[str], str]:
    from tldextract import TLDExtract  # 60 ms

    domains = TLDExtract(suffix_list_urls=(), cache_dir=None)  # with the list in the package

    @functools.lru_cache(maxsize=4096)
    def registered(host: str) -> str:
        return domains(host).top_domain_under_public_suffix

    return registered
