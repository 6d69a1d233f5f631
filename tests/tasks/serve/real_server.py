"""A real server with a real release of a tiny model, for tests from outside."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from safetensors.numpy import load_file, save_file

from storage.artifact import Artifact
from storage.digests import file_digest
from storage.manifest import SUMS
from tasks.export import ExportConfig, export
from tasks.stage.output import Output
from tests.tasks.serve.tiny_release import teach
from tests.tasks.tiny_model import RUNTIME, make_model, make_tokenizer, make_validation, speaking

LISTENING = re.compile(r"Listening at (\S+)")
START_SECONDS = 240
# A chat template that takes tools, with calls in the tags of Hermes
HERMES = """\
{%- if tools -%}
{{- '<|system|>\\nTools:\\n' -}}
{%- for tool in tools -%}{{- (tool | tojson) + '\\n' -}}{%- endfor -%}
{{- '<|end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
{%- if message['role'] == 'assistant' -%}
{{- '<|assistant|>\\n' -}}
{%- generation -%}
{{- message['content'] -}}
{%- for call in message.tool_calls or [] -%}
{{- '<tool_call>{"name": ' + (call.function.name | tojson) + ', "arguments": ' -}}
{{- (call.function.arguments | tojson) + '}</tool_call>' -}}
{%- endfor -%}
{{- '<|end|>' -}}
{%- endgeneration -%}
{{- '\\n' -}}
{%- elif message['role'] == 'tool' -%}
{{- '<|user|>\\n<tool_response>' + message['content'] + '</tool_response><|end|>\\n' -}}
{%- else -%}
{{- '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|assistant|>\\n' -}}
{%- endif -%}
"""


def make_release(
    folder: Path, template: str | None = None, says: str = "", *, scale: float = 1.0, **shape: Any
) -> Path:
    """A release of a model with random weights, in safetensors and as a GGUF file. `template` replaces that of chats.
    With `says`, the model says that again and again (see `tiny_release.py`). `scale` multiplies the weights, so that
    each token depends more on those before it."""
    if template is not None:
        (make_tokenizer(folder / "tokenizer") / "chat_template.jinja").write_text(template)
    model = speaking(make_model(folder / "model", **{"tie_embeddings": not says, **shape}))
    if scale != 1.0:
        weights = load_file(model / "model.safetensors")
        scaled = {name: weight * (scale if weight.ndim > 1 else 1) for name, weight in weights.items()}
        save_file(scaled, model / "model.safetensors", metadata={"format": "pt"})
    if says:
        teach(model, says, again=True)
    return release_of(folder, model, {"formats": ["safetensors", "gguf-f32" if says else "gguf-f16"]})


def release_of(
    folder: Path, model: Path, config: Mapping[str, Any], adapters: Mapping[str, Path] | None = None
) -> Path:
    """A release of a model, or of its adapters over a base, with the list of its files."""
    make_validation(folder / "validation", model)
    out = Output.at(folder / "made", stage="export", runtime=RUNTIME)
    config = {"prompts": ["The fox"], "greedy_tokens": 4, "positions": 64, **config}
    given = (Artifact.at(model), None, Artifact.at(folder / "validation"))
    linked = {name: Artifact.at(path) for name, path in (adapters or {}).items()}
    export.function(ExportConfig.model_validate(config), *given, linked, None, out)
    listed = [(file_digest(path), path.relative_to(out.path)) for path in sorted(out.path.rglob("*")) if path.is_file()]
    (out.path / SUMS).write_text("".join(f"{digest}  {name}\n" for digest, name in listed))
    return out.path


@dataclass
class Server:
    """A running server: its address, its process, its state folder, and what it has printed."""

    process: subprocess.Popen[str]
    state: Path
    lines: list[str] = field(default_factory=list)
    url: str = ""

    def engines(self) -> list[int]:
        """The process ids of its engines."""
        found = subprocess.run(["ps", "-wweo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
        rows = [line.split(None, 2) for line in found.splitlines()[1:]]
        programs = ("models.runtimes.llama_server", "tasks.serve.engines.transformers.server")
        own = [(int(pid), words) for pid, parent, words in rows if int(parent) == self.process.pid]
        return [pid for pid, words in own if any(program in words for program in programs)]

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        import httpx

        page = httpx.get(f"{self.url}/metrics").text
        return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if re.match(rf"{name}[ {{]", line))

    def audit(self) -> list[dict[str, Any]]:
        """The lines of the audit log so far."""
        files = sorted((self.state / "audit").glob("*.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@contextmanager
def serving(
    release: Path, folder: Path, settings: Mapping[str, Any] | None = None, **variables: str
) -> Iterator[Server]:
    """A server of a release with these settings, at a free port, ended by SIGTERM."""
    state = folder / "state"
    chosen = {"engine": {"slots": 4, "threads": 1, "context": 128}, **(settings or {}), "port": 0, "state": str(state)}
    chosen.setdefault("models", [{"release": str(release), "name": "tiny"}])
    (folder / "serve.yaml").write_text(yaml.safe_dump(chosen))
    command = [sys.executable, "-m", "flows.cli", "serve", "--config", str(folder / "serve.yaml")]
    environment = {**os.environ, "NO_COLOR": "1", "PYTHONUNBUFFERED": "1", **variables}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    server, listening = Server(process, state), threading.Event()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            server.lines.append(line.rstrip("\n"))
            if match := LISTENING.search(line):
                server.url = match[1]
                listening.set()
        listening.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        listening.wait(START_SECONDS)
        assert server.url, "\n".join(server.lines)
        yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
        reader.join(10)
