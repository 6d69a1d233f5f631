"""Spans by OpenTelemetry's names for generative AI, without content, and only if an endpoint is named."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from storage.errors import ConfigError
from tasks.serve.watch import Watch, WatchConfig
from tasks.serve.watch.config import TracesConfig
from tasks.serve.watch.traces import Traces
from tests.tasks.serve.watch.report import ANSWER, PROMPT, RELEASE, Found, ask, watching

HAS_SDK = find_spec("opentelemetry") is not None and find_spec("opentelemetry.sdk") is not None
needs_sdk = pytest.mark.skipif(not HAS_SDK, reason="needs OpenTelemetry's SDK: the extra otel")
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"


@pytest.fixture
def spans(tmp_path: Path) -> Iterator[tuple[Watch, Any]]:
    kept = import_module("opentelemetry.sdk.trace.export.in_memory_span_exporter").InMemorySpanExporter()
    with watching(tmp_path) as watch:
        watch.traces = Traces(TracesConfig(endpoint="http://127.0.0.1:9/v1/traces"), kept)
        yield watch, kept


def finished(watch: Watch, kept: Any) -> Any:
    assert watch.traces
    watch.traces.close()
    return kept.get_finished_spans()


@needs_sdk
def test_a_span_has_the_names_of_genai_and_no_content(spans: tuple[Watch, Any]) -> None:
    watch, kept = spans
    ask(watch, findings=(Found("email"),), client="203.0.113.9")
    (span,) = finished(watch, kept)
    assert (span.name, span.kind.name, span.parent) == ("chat tiny", "SERVER", None)
    said = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.max_tokens": 64,
        "gen_ai.response.id": "r0",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 5,
        "http.response.status_code": 200,
        "gristmill.release": RELEASE["digest"],
        "gristmill.guards": ("email",),
    }
    assert said.items() <= dict(span.attributes).items()
    assert 0 <= span.attributes["gen_ai.server.time_to_first_token"] < 1
    assert span.resource.attributes["service.name"] == "gristmill"
    for secret in (PROMPT, ANSWER, "203.0.113.9", "alice"):
        assert secret not in span.to_json()


@needs_sdk
def test_a_callers_trace_is_the_parent_and_decides(spans: tuple[Watch, Any]) -> None:
    watch, kept = spans
    ask(watch, 1, headers={"traceparent": PARENT})
    ask(watch, 2, headers={"traceparent": UNSAMPLED})
    ask(watch, 3, headers={"traceparent": "nonsense"}, status=500, finish="error")
    child, own = finished(watch, kept)
    assert f"{child.context.trace_id:032x}" == PARENT.split("-")[1]
    assert f"{child.parent.span_id:016x}" == PARENT.split("-")[2]
    assert own.parent is None
    assert (own.status.status_code.name, own.attributes["error.type"]) == ("ERROR", "500")


@needs_sdk
def test_spans_are_sent_to_the_endpoint_that_is_named(tmp_path: Path) -> None:
    received = list[tuple[str, bytes]]()

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with watching(tmp_path, traces={"endpoint": f"http://127.0.0.1:{server.server_port}/v1/traces"}) as watch:
        ask(watch)
    server.shutdown()
    assert [path for path, _ in received] == ["/v1/traces"]
    assert PROMPT.encode() not in b"".join(body for _, body in received)


def test_without_an_endpoint_nothing_is_imported(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from tests.tasks.serve.watch.report import ask, watching\n"
        "with watching(Path(sys.argv[1])) as watch: ask(watch, headers={'traceparent': 'x'})\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.skipif(HAS_SDK, reason="the extra otel is installed")
def test_the_missing_extra_is_named(tmp_path: Path) -> None:
    config = WatchConfig(traces=TracesConfig(endpoint="http://127.0.0.1:4318/v1/traces"))
    with pytest.raises(ConfigError, match="lacks opentelemetry") as error:
        Watch(config, tmp_path)
    assert error.value.remedy == "Install it: pip install 'gristmill[otel]'"
