"""Ollama's Modelfile, for a release with a GGUF file.

Ollama renders prompts by a Go template, not by Jinja. Our chat templates have versions in Go with the same text, except
for BOS, which Ollama adds itself. For any other template none is written, and Ollama converts the one in the GGUF file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from models.pretrained import context_of, load_config
from models.tokenizer import CHAT_TEMPLATE_PATH, END, WITH_BOS, load_tokenizer, roles_as_text
from tasks.export.formats import FORMATS

PREFERRED = ("gguf-q4_k_m", "gguf-q8_0", "gguf-f16")
# models/chat_template.jinja and models/roles_as_text.jinja in Go: a dash trims the white space on its side
GO_TEMPLATE = "{{- range .Messages }}<|{{ .Role }}|>{{ .Content }}<|end|>{{ end }}<|assistant|>"
GO_ROLES_AS_TEXT = """\
{{- range .Messages }}<|{{ .Role }}|>
{{ .Content }}<|end|>
{{ end }}<|assistant|>
"""


def modelfile(model: Path, release: Path, formats: Iterable[str]) -> str | None:
    """The Modelfile's text for a model folder and its release. None if the release holds no GGUF file."""
    held = [name for name in formats if FORMATS[name].path(release).suffix == ".gguf"]
    if not held:
        return None
    chosen = next((name for name in PREFERRED if name in held), held[0])
    lines = [f"FROM ./{FORMATS[chosen].path(release).relative_to(release).as_posix()}"]
    if template := _go_template(model):
        lines.append(f'TEMPLATE """{template}"""')
    lines += [f"PARAMETER stop {json.dumps(text, ensure_ascii=False)}" for text in _ends(model)]
    lines.append(f"PARAMETER num_ctx {context_of(load_config(model))}")
    lines += ["# greedy, as the release was proved", "PARAMETER temperature 0"]
    return "\n".join(lines) + "\n"


def _go_template(model: Path) -> str | None:
    """The Go version of a model's chat template, if it is ours."""
    template = (model / "chat_template.jinja").read_text(encoding="utf-8").removeprefix(WITH_BOS)
    if template == CHAT_TEMPLATE_PATH.read_text(encoding="utf-8"):
        return GO_TEMPLATE
    eos = str(load_tokenizer(model).eos_token)
    return GO_ROLES_AS_TEXT.replace(END, eos) if template == roles_as_text(eos) else None


def _ends(model: Path) -> list[str]:
    """The tokens that end a generation."""
    path = model / "generation_config.json"
    settings = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    eos = settings.get("eos_token_id")
    ids = eos if isinstance(eos, list) else [eos]
    tokenizer = load_tokenizer(model)
    ends = [tokenizer.convert_ids_to_tokens(number) for number in ids if number is not None]
    return list(dict.fromkeys([*ends, str(tokenizer.eos_token)]))
