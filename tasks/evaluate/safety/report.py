"""Reports a model's safety for people and programs: safety.json, safety.md, items/ and texts/."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

from storage.shards.lines import write_json_lines
from tasks.evaluate.safety.config import SafetyConfig
from tasks.evaluate.safety.shares import cell
from tasks.stage.display.pages import markdown_table
from tasks.stage.output import Output

FILE, PAGE = "safety.json", "safety.md"
LETTERS = 300  # maximum characters of a shown text
WORST = 5  # continuations shown

Rows = list[dict[str, Any]]


def write(
    config: SafetyConfig, found: Mapping[str, Any], items: Mapping[str, Rows], texts: Mapping[str, Rows], out: Output
) -> None:
    """Write all files of the artifact, its tables and its counts."""
    (out.path / FILE).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    for folder, files in (("items", items), ("texts", texts)):
        for name, rows in files.items():
            (out.path / folder).mkdir(exist_ok=True)
            write_json_lines(out.path / folder / f"{name}.jsonl", rows)
    shown = tables(found)
    parts = [f"## {title}\n\n{markdown_table(rows)}" for title, rows in shown.items()]
    text = "\n\n".join(["# Safety", *parts, *notes(config, found), *_read(config, texts)]) + "\n"
    (out.path / PAGE).write_text(text, encoding="utf-8")
    for title, rows in shown.items():
        out.table(title, rows)
    out.count(safety=headlines(found), summary=", ".join(_summary(found)))


def tables(found: Mapping[str, Any]) -> dict[str, list[dict[str, str]]]:
    """Tables by title, as Markdown and the Prefect UI show them."""
    shown: dict[str, list[dict[str, str]]] = {}
    if told := found.get("continuations"):
        shown["Toxicity of continuations"] = [
            {"measure": name, "value": cell(told[key]), "of": of}
            for name, key, of in (
                ("expected maximum toxicity", "expected_maximum_toxicity", f"{told['prompts']:,} prompts"),
                (f"prompts with one from {told['threshold']:g}", "toxic_prompts", f"{told['prompts']:,} prompts"),
                (f"continuations from {told['threshold']:g}", "toxic_continuations", f"{told['continuations']:,}"),
            )
        ]
        shown["Personal data in continuations"] = [
            {"kind": kind, "found": f"{one['found']:,}", "of them in the prompt too": f"{one['also_in_prompt']:,}"}
            for kind, one in told["personal_data"].items()
        ] or [{"kind": "none", "found": "0", "of them in the prompt too": "0"}]
    if told := found.get("memorisation"):
        shown["Memorisation by source"] = [
            row for split in ("training", "held_out") for row in _memorisation(split.replace("_", " "), told[split])
        ]
    if told := found.get("refusals"):
        shown["Refusals"] = [
            {
                "set": name,
                "refused": cell(one["refused"]),
                "answers": f"{one['answers']:,}",
                "empty": f"{one['empty']:,}",
                "unclear": _unclear(one),
                "by": one["by"],
            }
            for name, one in told.items()
        ]
    if told := found.get("bias"):
        shown["Bias"] = [
            {
                "context": condition,
                "category": name,
                "accuracy": cell(one["accuracy"]),
                "bias score": cell(one["bias"]),
                "questions": f"{one['questions']:,}",
                "answers that name somebody": f"{one['named']:,}",
            }
            for condition, whole in told.items()
            for name, one in (("all", whole), *whole["categories"].items())
        ]
    return shown


def _unclear(result: Mapping[str, Any]) -> str:
    """The number of answers without a judgement, and the faults of the judge's replies by kind."""
    kinds = ", ".join(f"judge {fault}: {number:,}" for fault, number in result["judge"].items())
    return f"{result['unclear']:,}" + (f" ({kinds})" if kinds else "")


def notes(config: SafetyConfig, found: Mapping[str, Any]) -> list[str]:
    """Notes that explain the tables."""
    lines = ["Intervals are at 95 %."]
    if "continuations" in found:
        lines.append(
            "Toxicity is a classifier's score. Compare it only between models measured by the same classifier, not "
            f"with published numbers. Empty continuations: {found['continuations']['empty']:,}."
        )
    if memorised := found.get("memorisation"):
        lines.append(
            f"The model is given {memorised['prompt_tokens']} tokens of each document, and continues greedily with "
            f"{memorised['continuation_tokens']}. Extractable: all of them are the document's. Recalled: how many are, "
            "from the first on. Anywhere: the longest piece of the continuation that is anywhere in the "
            f"{memorised['training_tokens']:,} training tokens. Held-out documents are the control."
        )
    if any(one["by"] == "patterns" for one in found.get("refusals", {}).values()):
        assert config.refusals is not None
        lines.append(
            f"An answer counts as refused if one of {len(config.refusals.patterns)} patterns matches in its first "
            f"{config.refusals.characters} characters. This is a crude measure, so read some answers."
        )
    if "bias" in found:
        without = sum(one["without_target"] for one in found["bias"].values())
        if without:
            lines.append(
                f"In {without:,} questions not exactly one answer names the stereotyped group: they count only for "
                "accuracy."
            )
        lines.append(
            "A bias score is 1 if all answers that name somebody agree with the stereotype, −1 if all contradict it. "
            "In ambiguous contexts it is scaled by the share of wrong answers (Parrish et al. 2022)."
        )
    return lines


def headlines(found: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers that a comparison of two artifacts shows."""
    values: dict[str, Any] = {}
    if one := found.get("continuations"):
        for name in ("expected_maximum_toxicity", "toxic_prompts", "personal_data_prompts"):
            values[name] = one[name]["value"]
    if one := found.get("memorisation"):
        values |= {
            f"extractable_{split}": (one[split]["extractable"] or {}).get("value") for split in ("training", "held_out")
        }
    refusals = found.get("refusals", {})
    values |= {f"refused_{name}": (one["refused"] or {}).get("value") for name, one in refusals.items()}
    values |= {f"bias_{condition}": one["bias"]["value"] for condition, one in found.get("bias", {}).items()}
    return values


def _summary(found: Mapping[str, Any]) -> list[str]:
    return [f"{name.replace('_', ' ')} {value:.3f}" for name, value in headlines(found).items() if value is not None]


def _memorisation(split: str, result: Mapping[str, Any]) -> list[dict[str, str]]:
    return [
        {
            "split": split,
            "source": name,
            "documents": f"{one['documents']:,}",
            "extractable": cell(one["extractable"]),
            "recalled": _tokens(one["recalled"]),
            "anywhere": _tokens(one["anywhere"]),
        }
        for name, one in (*result["by_source"].items(), ("all", result))
    ]


def _tokens(number: Mapping[str, Any]) -> str:
    return f"{cell(dict(number), 1)}, longest {number['longest']:.0f}" if number["value"] is not None else "none"


def _read(config: SafetyConfig, texts: Mapping[str, Rows]) -> list[str]:
    """Some texts: the worst continuations, and the first answers of each set."""
    shown = []
    if worst := sorted(texts.get("continuations", ()), key=lambda row: (-row["toxicity"], row["id"], row["sample"]))[
        :WORST
    ]:
        rows = [
            {
                "toxicity": f"{row['toxicity']:.3f}",
                "prompt": _cut(row["prompt"]),
                "continuation": _cut(row["continuation"]),
            }
            for row in worst
        ]
        shown.append(f"## The most toxic continuations\n\n{markdown_table(rows)}")
    for name in ("harmful", "harmless"):
        rows = [
            {
                "refused": {True: "yes", False: "no"}.get(row["refused"], "unclear"),
                "prompt": _cut(row["prompt"][-1]["content"]),
                "answer": _cut(row["answer"]),
            }
            for row in texts.get(f"refusals-{name}", [])[: config.refusals.examples if config.refusals else 0]
        ]
        if rows:
            shown.append(f"## Answers to {name} prompts\n\n{markdown_table(rows)}")
    return shown


def _cut(text: str) -> str:
    """A text shortened and escaped for a cell of Markdown."""
    plain = " ".join(text.split())
    cut: Sequence[str] = plain if len(plain) <= LETTERS else f"{plain[:LETTERS]} …"
    return html.escape(str(cut), quote=False)
