"""The files of the pages: what they may do is written in their headers, and they try nothing else."""

from __future__ import annotations

import re

import pytest

from tasks.serve.pages import page_files
from tasks.serve.pages.files import STATIC

FILES = page_files()
POLICY = {
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "connect-src 'self'",
    "img-src 'self' data:",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types",
}


def test_every_file_has_a_route_a_type_and_the_policy() -> None:
    assert len(FILES) == len(list(STATIC.iterdir()))
    assert {"/", "/status", "/pages/chat.js", "/pages/style.css", "/pages/mill.svg"} <= FILES.keys()
    kinds = {
        "/": "text/html",
        "/status": "text/html",
        "/pages/sse.js": "text/javascript",
        "/pages/style.css": "text/css",
    }
    for route, kind in kinds.items():
        assert FILES[route].headers["Content-Type"] == f"{kind}; charset=utf-8"
    for file in FILES.values():
        assert set(file.headers["Content-Security-Policy"].split("; ")) == POLICY
        assert file.headers["X-Content-Type-Options"] == "nosniff"
    assert sum(len(file.content) for file in FILES.values()) < 60_000


@pytest.mark.parametrize("route", FILES)
def test_a_file_names_no_other_host_and_makes_no_markup_or_code_of_text(route: str) -> None:
    text = FILES[route].content.decode()
    assert set(re.findall(r"https?://[\w.]+", text)) <= {"http://www.w3.org"}, "the name of SVG, which is not asked"
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|DOMParser", text
    )
    if route in ("/", "/status"):
        assert not re.search(r"<style|<script(?! type=\"module\" src=)|\sstyle=|\son\w+=|javascript:", text)
    wanted = set(re.findall(r"/pages/[\w.]+", text)) | {
        f"/pages/{name}" for name in re.findall(r"from \"\./([\w.]+)\"", text)
    }
    assert wanted <= FILES.keys()
