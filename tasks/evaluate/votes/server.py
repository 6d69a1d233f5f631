"""A server on 127.0.0.1 for one voter's page.

Other pages in the browser, and other users of this machine, can reach the port too. So every request needs the token of
this run, which is in the address that the terminal prints. It must name this host, which stops a foreign name that
points here (DNS rebinding). A vote from another page is refused by its Origin. The page may not load anything nor be
shown in a frame.
"""

from __future__ import annotations

import hmac
import secrets
import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

from storage.errors import ConfigError
from tasks.evaluate.votes.ballot import CHOICES, Ballot, Choice
from tasks.evaluate.votes.page import disguised, page

HOST = "127.0.0.1"
MOST_BYTES = 4096  # of a vote
SECONDS = 20  # that a request may take


class VoteServer(ThreadingHTTPServer):
    """Shows a ballot at `address` until it is closed. Raises ConfigError if the port is taken."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, ballot: Ballot, port: int = 0) -> None:
        self.ballot, self.token, self.lock = ballot, secrets.token_urlsafe(24), Lock()
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise ConfigError(
                f"Port {port} can't be used ({error.strerror}).", "Choose another one with --port, or 0 for any."
            ) from error

    @property
    def address(self) -> str:
        """The address to open in a browser."""
        return f"http://{HOST}:{self.server_port}/?token={self.token}"

    @property
    def names(self) -> tuple[str, str]:
        """The hosts that a request may name."""
        return f"{HOST}:{self.server_port}", f"localhost:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores a browser that disconnects, but no other error."""
        import sys

        if not isinstance(sys.exception(), ConnectionError | TimeoutError | socket.timeout):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    """GET / shows the page, POST /vote and /undo redirect to it."""

    server: VoteServer
    timeout = SECONDS
    server_version, sys_version = "gristmill", ""
    headers_sent: ClassVar[dict[str, str]] = {
        "Cache-Control": "no-store",
        "Referrer-Policy": "same-origin",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
    }

    def do_GET(self) -> None:
        """Show the page."""
        address = urlsplit(self.path)
        if not self._is_ours():
            return
        if address.path != "/":
            self._say(404, "This page doesn't exist.")
        elif self._has_token(parse_qs(address.query).get("token", [""])[0]):
            nonce = secrets.token_urlsafe(16)
            with self.server.lock:
                content = page(self.server.ballot, self.server.token, nonce)
            self._say(200, content, f"'nonce-{nonce}'")

    def do_POST(self) -> None:
        """Take a vote or an undo, and show the page that follows."""
        if not self._is_ours():
            return
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdecimal() or len(length) > 8 or int(length) > MOST_BYTES:
            self._say(413, "This isn't a vote.")
            return
        try:
            sent = self.rfile.read(int(length)).decode("ascii")
            fields = {name: values[-1] for name, values in parse_qs(sent, max_num_fields=8).items()}
        except ValueError:
            self._say(400, "This isn't a vote.")
            return
        if not self._has_token(fields.get("token", "")):
            return
        try:
            accepted = self._accept(urlsplit(self.path).path, fields)
        except OSError as error:
            self._say(500, f"The vote could not be written ({error.strerror}). Go back and try again.")
            return
        if not accepted:
            self._say(400, "This isn't a vote.")
            return
        self.send_response(303)
        self.send_header("Location", f"/?token={self.server.token}")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _accept(self, path: str, fields: dict[str, str]) -> bool:
        """Apply a vote or an undo, and return whether it is one. A vote on any but the open question changes nothing,
        and the browser then shows the open one."""
        choice = fields.get("choice", "")
        with self.server.lock:
            if path == "/undo":
                self.server.ballot.undo()
                return True
            if path == "/vote" and choice in CHOICES:
                known: Choice = "left" if choice == "left" else "right" if choice == "right" else "tie"
                question = self.server.ballot.next()
                if question and fields.get("question") == disguised(self.server.token, question.key):
                    self.server.ballot.vote(question.key, known)
                return True
        return False

    def _is_ours(self) -> bool:
        """Whether the request names this server and, if it states its origin, comes from the server's own page."""
        hosts, origin = self.headers.get_all("Host") or [], self.headers.get("Origin")
        if len(hosts) != 1 or hosts[0] not in self.server.names:
            self._say(421, "This server has another name.")
            return False
        if origin not in (None, *(f"http://{name}" for name in self.server.names)):
            self._say(403, "This comes from another page.")
            return False
        return True

    def _has_token(self, token: str) -> bool:
        if hmac.compare_digest(token.encode(), self.server.token.encode()):
            return True
        self._say(403, "Open the address that the terminal shows.")
        return False

    def _say(self, status: int, text: str, source: str = "") -> None:
        content = text.encode()
        allowed = f"; style-src {source}; script-src {source}; form-action 'self'; img-src data:" if source else ""
        policy = f"default-src 'none'; frame-ancestors 'none'; base-uri 'none'{allowed}"
        self.send_response(status)
        kind = "text/html" if source else "text/plain"
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(content)),
            "Content-Security-Policy": policy,
            **self.headers_sent,
        }.items():
            self.send_header(name, value)
        if status >= 400:
            self.close_connection = True
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Logs nothing, as a line would contain the token."""
