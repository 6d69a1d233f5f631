"""`gristmill ui --notify` sends its block a message at the start."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from flows.commands.ui.trial import trial
from tests.flows.running_ui import sent, served


class Receiver(HTTPServer):
    """Records requests, and answers with a status."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.heard: list[str] = []
        self.status = 200


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        self.server.heard.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.soak
def test_a_block_is_sent_a_message_and_its_answer_is_told_without_its_address(
    receiver: Receiver, tmp_path: Path
) -> None:
    with served(tmp_path) as environment:
        _webhook(environment, f"http://127.0.0.1:{receiver.server_port}/secret")
        assert trial(environment, "custom-webhook/team", "http://here") == ""
        (heard,) = receiver.heard
        assert "Gristmill at http://here: failed and crashed runs will be reported here." in heard
        receiver.status = 500
        why = trial(environment, "custom-webhook/team", "http://here")
        assert "500" in why
        assert "secret" not in why


def _webhook(environment: Mapping[str, str], url: str) -> None:
    def asked(method: str, path: str, body: Any = None) -> Any:
        return sent(environment, method, path, body).raise_for_status().json()

    kind = asked("GET", "/block_types/slug/custom-webhook")
    (schema, *_) = asked("POST", "/block_schemas/filter", {"block_schemas": {"block_type_id": {"any_": [kind["id"]]}}})
    data = {"name": "team", "url": url, "json_data": {"text": "{{subject}} | {{body}}"}}
    block = {"name": "team", "data": data, "block_type_id": kind["id"], "block_schema_id": schema["id"]}
    asked("POST", "/block_documents/", block)
