"""The files of the pages by their routes, with the headers that they are served with.

The policy lets a page load scripts and styles of its own server and nothing else, send requests only there, and be in
nobody's frame. Trusted types turn an assignment to `innerHTML` into an error, so text of a model can't become markup.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

STATIC = Path(__file__).parent / "static"
ROUTES = {"chat.html": "/", "status.html": "/status"}  # any other file: /pages/<its name>
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


@dataclass(frozen=True)
class PageFile:
    """A file as it is sent: its bytes, and all its headers but the length."""

    content: bytes
    headers: Mapping[str, str]


def page_files() -> dict[str, PageFile]:
    """Every file of the pages by its route. They need no key: whatever they show is asked for by requests with one."""
    return {
        ROUTES.get(path.name, f"/pages/{path.name}"): PageFile(
            path.read_bytes(), {"Content-Type": TYPES[path.suffix], **HEADERS}
        )
        for path in sorted(STATIC.iterdir())
    }
