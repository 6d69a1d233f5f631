"""A server on 127.0.0.1 for one voter's page.

Other pages in the browser, and other users of this machine, can reach the port too. So nothing is answered without the
token of this run, which stands in the address that the terminal prints; a request must name this host, or a foreign
name that was made to point here (DNS rebinding) would do; and a vote that comes from another page is refused by its
Origin. What is sent may load nothing and be shown in no frame.
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
SECONDS = 20  # a request may take


class VoteServer(ThreadingHTTPServer):
    """Shows a ballot at `address` until it is closed. Raises ConfigError where the port is taken."""

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
        """What to open in a browser."""
        return f"http://{HOST}:{self.server_port}/?token={self.token}"

    @property
    def names(self) -> tuple[str, str]:
        """The hosts that a request may name."""
        return f"{HOST}:{self.server_port}", f"localhost:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that goes away is no error of ours; anything else is."""
        import sys

        if not isinstance(sys.exception(), ConnectionError | TimeoutError | socket.timeout):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    """GET / shows the page, POST /vote and /undo go on to it."""

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
            self._say(404, "There is nothing here.")
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
            self._say(413, "This is no vote.")
            return
        try:
            sent = self.rfile.read(int(length)).decode("ascii")
            fields = {name: values[-1] for name, values in parse_qs(sent, max_num_fields=8).items()}
        except ValueError:
            self._say(400, "This is no vote.")
            return
        if not self._has_token(fields.get("token", "")):
            return
        try:
            taken = self._taken(urlsplit(self.path).path, fields)
        except OSError as error:
            self._say(500, f"The vote could not be written ({error.strerror}). Go back, and try again.")
            return
        if not taken:
            self._say(400, "This is no vote.")
            return
        self.send_response(303)
        self.send_header("Location", f"/?token={self.server.token}")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _taken(self, path: str, fields: dict[str, str]) -> bool:
        """Whether this is a vote or an undo. One on another question than the one that is open changes nothing, and
        the browser is shown that one."""
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
        """Whether the request names this server, and comes from its own page where it says from which."""
        hosts, origin = self.headers.get_all("Host") or [], self.headers.get("Origin")
        if len(hosts) != 1 or hosts[0] not in self.server.names:
            self._say(421, "This server has another name.")
            return False
        if origin not in (None, *(f"http://{name}" for name in self.server.names)):
            self._say(403, "This comes from another page.")
            return False
        return True

    def _has_token(self, given: str) -> bool:
        if hmac.compare_digest(given.encode(), self.server.token.encode()):
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
        """Nothing: a line of a log would hold the token."""
