"""Speculative decoding on the card: how often guesses were right, and how to use a draft."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.export.config import SpeculationConfig
from tasks.export.formats import GUESSED
from tasks.export.formats.source import DRAFT
from tasks.stage.display.pages import markdown_table

_COMMANDS = {
    "transformers": "model.generate(**prompt, do_sample=False, "
    'assistant_model=AutoModelForCausalLM.from_pretrained("draft"))',
    "vLLM": 'vllm serve . --speculative-config \'{{"method": "draft_model", "model": "draft", '
    '"num_speculative_tokens": {guesses}}}\'',
    "llama.cpp": "llama-server -m {model} -md {draft}",
}


def speculation_rows(counts: Mapping[str, Any]) -> list[dict[str, str]]:
    """A row for each format and kind of guess. Of T tokens in P passes, T − P were correct guesses."""
    return [
        {
            "format": name,
            "guesses by": kind,
            "accepted": f"{one['accepted']:,} of {one['guessed']:,}"
            + (f" ({one['accepted'] / one['guessed']:.0%})" if one["guessed"] else ""),
            "tokens a pass": f"{one['tokens'] / max(one['tokens'] - one['accepted'], 1):.2f}",
            "same text": f"{one['prompts']} of {one['prompts']}" + (f", {one['ties']} to a tie" * bool(one["ties"])),
        }
        for name, kinds in counts.items()
        for kind, one in kinds.items()
    ]


def speculative_decoding(counts: Mapping[str, Any], config: SpeculationConfig | None) -> list[str]:
    """The paragraphs of the section, none if it was not measured."""
    if not counts:
        return []
    settings = config or SpeculationConfig()
    parts = [
        "### Speculative decoding",
        f"{settings.guesses} tokens are guessed at a time, and the model checks them in one pass: greedy text stays "
        f"the same. N-grams look up the last {settings.ngram} tokens in the preceding text.",
        markdown_table(speculation_rows(counts)),
    ]
    if any(DRAFT in kinds for kinds in counts.values()):
        commands = {program: _command(_COMMANDS[program], counts, settings) for program in _programs(counts)}
        rows = [{"program": program, "command": f"`{command}`"} for program, command in commands.items()]
        parts += ["The draft is in `draft`. vLLM was not run.", markdown_table(rows)]
    return parts


def _programs(counts: Mapping[str, Any]) -> list[str]:
    plain = [program for program in ("transformers", "vLLM") if "safetensors" in counts]
    return plain + (["llama.cpp"] if _ggufs(counts) else [])


def _ggufs(counts: Mapping[str, Any]) -> list[str]:
    return [name for name in counts if name.startswith("gguf-")]


def _command(template: str, counts: Mapping[str, Any], config: SpeculationConfig) -> str:
    from pathlib import Path

    here = Path()
    paths = {"model": "", "draft": ""}
    for name in _ggufs(counts)[:1]:
        paths = {"model": str(GUESSED[name].path(here)), "draft": str(GUESSED[name].draft(here))}
    return template.format(guesses=config.guesses, **paths)
