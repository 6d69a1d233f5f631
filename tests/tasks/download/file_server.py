"""A server of files on this machine that can refuse, cut connections and send whole files only. It also speaks the
protocol of the Hugging Face hub, for a data set whose large files lie on another server."""

from __future__ import annotations

import hashlib
import json
import re
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

ERROR_PAGE = b"<html><body>Please slow down</body></html>"


@dataclass
class Repository:
    """A data set of the hub at a commit. Its files are those of the server. Parquet is listed with SHA-256, and sent
    from the URL `elsewhere`, if that isn't empty. `lists` replaces what is said of some files, and `refusals` are the
    next answers to questions about them."""

    dataset: str
    commit: str
    elsewhere: str = ""
    lists: dict[str, dict[str, Any]] = field(default_factory=dict)
    refusals: list[int] = field(default_factory=list)
    token: str = ""

    def info(self, path: str, data: bytes) -> dict[str, Any]:
        """What the hub says of a file."""
        oid = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        large = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
        said = {"type": "file", "path": path, "size": len(data), "oid": oid}
        return (
            said | ({"lfs": large} if self.elsewhere and path.endswith(".parquet") else {}) | self.lists.get(path, {})
        )


@dataclass
class Behaviour:
    """What the server does. `refusals` are the statuses of the next answers. `cut` is the most bytes of an answer,
    whose connection then dies, and `short` those of a part, which then ends."""

    files: dict[str, bytes] = field(default_factory=dict)
    parts: bool = True
    refusals: list[int] = field(default_factory=list)
    cut: int | None = None
    short: int | None = None
    versioned: bool = True
    version: str = '"1"'
    wait: str | None = None
    hub: Repository | None = None
    asked: list[tuple[str, str, str]] = field(default_factory=list)  # path, range and token of each GET


@contextmanager
def serve_files(behaviour: Behaviour) -> Iterator[str]:
    """The server's URL, within the block."""
    lock = Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else each answer's body waits 40 ms for its header to be acknowledged

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_POST(self) -> None:
            asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
            self._answer_of_hub(urllib.parse.parse_qs(asked).get("paths", []))

        def _answer_of_hub(self, paths: list[str]) -> bool:
            """Answer what is asked about a data set, or a file of it that lies elsewhere. Returns whether it was."""
            hub = behaviour.hub
            url = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
            if hub is None or f"/datasets/{hub.dataset}/" not in url:
                return False
            about, file = url.startswith("/api/"), url.partition(f"/resolve/{hub.commit}/")[2]
            meant = about or file.endswith(".parquet")
            refusal = hub.refusals.pop(0) if meant and hub.refusals else 0
            if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
                self._send(401, b"", **{"X-Error-Code": "GatedRepo"})
            elif f"/{hub.commit}" not in url:
                self._send(404, b"", **{"X-Error-Code": "RevisionNotFound"})
            elif refusal:
                self._send(refusal, ERROR_PAGE)
            elif about:
                infos = {path: hub.info(path, data) for path, data in behaviour.files.items()}
                before, _, folder = url.partition(f"/{hub.commit}")
                part = before.rpartition("/")[2]
                folders = {path.rpartition("/")[0] for path in infos} - {""}
                infos |= {path: {"type": "directory", "path": path, "oid": "0"} for path in folders}
                within = f"{folder.strip('/')}/".lstrip("/")
                below = [path for path in infos if path.startswith(within)]
                if part == "revision":
                    answer: Any = {"id": hub.dataset, "sha": hub.commit, "siblings": [], "tags": []}
                elif part == "paths-info":
                    answer = [infos[path] for path in paths if path in infos]
                else:
                    deep = "recursive=True" in self.path
                    answer = [infos[path] for path in below if deep or "/" not in path.removeprefix(within)]
                self._send(200, json.dumps(answer).encode(), **{"Content-Type": "application/json"})
            elif file not in behaviour.files:
                self._send(404, b"", **{"X-Error-Code": "EntryNotFound", "X-Repo-Commit": hub.commit})
            elif hub.elsewhere and file.endswith(".parquet"):
                digest = hashlib.sha256(behaviour.files[file]).hexdigest()
                self._send(302, b"", Location=f"{hub.elsewhere}/{file}", **{"X-Linked-Etag": f'"{digest}"'})
            else:
                oid = hub.info(file, behaviour.files[file])["oid"]
                self._send_file(behaviour.files[file], {"ETag": f'"{oid}"', "X-Repo-Commit": hub.commit})
            return True

        def do_GET(self) -> None:
            behaviour.asked.append((self.path, self.headers.get("Range", ""), self.headers.get("Authorization", "")))
            with lock:
                refusal = behaviour.refusals.pop(0) if behaviour.refusals else 0
            try:
                self._answer(refusal)
            except ConnectionError:  # the client has gone
                self.close_connection = True

        def _answer(self, refusal: int) -> None:
            data = behaviour.files.get(self.path.lstrip("/"))
            if self.path.startswith("/circle"):
                return self._send(302, b"", Location=f"/circle{len(self.path)}")
            if self.path.startswith("/moved/"):
                return self._send(302, b"", Location=self.path.removeprefix("/moved"))
            if refusal:
                return self._send(refusal, ERROR_PAGE, **({"Retry-After": behaviour.wait} if behaviour.wait else {}))
            if data is None:
                return None if self._answer_of_hub([]) else self._send(404, ERROR_PAGE)
            named = {"ETag": behaviour.version} if behaviour.versioned else {}
            self._send_file(data, named)

        def _send_file(self, data: bytes, named: dict[str, str]) -> None:
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            if not asked or not behaviour.parts:
                return self._send(200, data, **named)
            start, end = int(asked[1]), min(int(asked[2]), len(data) - 1)
            if start >= len(data):
                return self._send(416, b"", **{"Content-Range": f"bytes */{len(data)}"}, **named)
            place = {"Content-Range": f"bytes {start}-{end}/{len(data)}"}
            self._send(206, data[start : end + 1][: behaviour.short], **place, **named)

        def _send(self, status: int, data: bytes, **headers: str) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "HEAD":
                return
            if behaviour.cut is not None and len(data) > behaviour.cut:
                self.wfile.write(data[: behaviour.cut])
                self.close_connection = True
            else:
                self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
