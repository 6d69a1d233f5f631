"""E-mail addresses around each @, as far as they can be a person's.

The form is that of Presidio's recogniser; where an address begins in a URL, what is a remote of git and what belongs to
nobody (RFC 2606 reserves `example.com` and others, programs write from `noreply@`) is decided here. Domains are checked
against the list of public suffixes that comes with `tldextract`; nothing is downloaded.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator

from tasks.filter.pii.findings import Finding

Span = tuple[int, int]

SCORE = 1.0
_LOCAL = re.compile(r"[\w!#$%&'*+\-/=?^`{|}~.]{1,128}\Z")  # longer than RFC 5321 allows: a URL may stand before it
_DOMAIN = re.compile(r"\w[\w\-]{0,62}(?:\.\w[\w\-]{0,62})*\.\w[\w\-]{0,62}")
_FIRST = re.compile(r"[\w!#$%&'*+\-^`{|}~]")
# `?mail=`, `//host/`: what stands before an address in a URL. A value that is a domain itself is a bounce's (VERP)
_QUERY = re.compile(r".*[?&/|]", re.DOTALL)
_PROGRAMS = frozenset({"git", "hg", "svn", "ssh", "gitlab", "gitea", "aur", "cvs", "anonymous", "anoncvs"})
_NOBODY = re.compile(
    r"(?:no|do[-_.]?not|donot|dont)[-_.]?reply(?:[-_+.].*)?|mailer[-_]daemon|nobody|noemail|your?[-_.]?(?:e?mail|name|user(?:name)?)"
    r"|(?:user|first|last)[-_.]?name|(?:e?mail|name|user|username)|x{2,}|foo|bar|\.{2,}|bounces?(?:[-_+][^=]*)?",
    re.IGNORECASE,
)
_RESERVED = re.compile(
    r"(?:.*\.)?(?:example(?:\.(?:com|net|org|edu))?|test|invalid|localhost|local|internal|lan)"
    r"|users\.noreply\.github\.com|(?:your|my|some)?[-_]?(?:domain|company|host|server|provider|site|org)\.(?:com|org|net|tld)"
    r"|foo\.(?:com|bar|org)|bar\.com|email\.com|mail\.example",
    re.IGNORECASE,
)


def find_emails(text: str, spans: Iterable[Span]) -> Iterator[Finding]:
    """The e-mail addresses at these @."""
    for at, _ in spans:
        found = _around(text, at)
        if found is not None:
            yield Finding("EMAIL_ADDRESS", *found, SCORE)


def _around(text: str, at: int) -> Span | None:
    domain = _DOMAIN.match(text, at + 1, min(at + 255, len(text)))
    local = _LOCAL.search(text, max(at - 128, 0), at)
    if domain is None or local is None or text[at - 1] == ".":
        return None
    start, end = local.start(), domain.end()
    named = _QUERY.match(text, start, at)
    start = named.end() if named else start
    before, equals, value = text[start:at].rpartition("=")
    if equals and not _has_suffix(value):  # else the address of a bounce, with another one in it
        start += len(before) + 1
    while start < at and (not _FIRST.match(text, start) or text[start] in "'`{}"):
        start += 1
    name, host = text[start:at], text[at + 1 : end]
    if not name or not re.search(r"\w", name) or _is_remote(text, name, start, end):
        return None
    if _NOBODY.fullmatch(name) or _RESERVED.fullmatch(host) or not _has_suffix(host):
        return None
    return start, end


def _is_remote(text: str, name: str, start: int, end: int) -> bool:
    """Whether it is the place of a repository or a login, not an address for mail."""
    if name.lower() in _PROGRAMS or text[max(start - 3, 0) : start] == "://" or text[end : end + 2] in (":/", ":~"):
        return True
    return re.match(r":[\w\-./~]+\.git\b", text[end : end + 120]) is not None


def _has_suffix(host: str) -> bool:
    return bool(_suffixes()(host))


@functools.cache
def _suffixes() -> Callable[[str], str]:
    from tldextract import TLDExtract  # 60 ms

    domains = TLDExtract(suffix_list_urls=(), cache_dir=None)  # the list that comes with it

    @functools.lru_cache(maxsize=4096)
    def registered(host: str) -> str:
        return domains(host).top_domain_under_public_suffix

    return registered
