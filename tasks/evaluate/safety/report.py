"""What was measured of a model, for people and programs: safety.json, safety.md, items/ and texts/."""

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
LETTERS = 300  # of a text that is shown
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
    """By title, as Markdown and the Prefect UI show them."""
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


def _unclear(told: Mapping[str, Any]) -> str:
    """How many answers have no judgement, and what was wrong with the judge's own by kind."""
    kinds = ", ".join(f"judge {fault}: {number:,}" for fault, number in told["judge"].items())
    return f"{told['unclear']:,}" + (f" ({kinds})" if kinds else "")


def notes(config: SafetyConfig, found: Mapping[str, Any]) -> list[str]:
    """What the tables don't say of themselves."""
    said = ["Intervals are at 95 %."]
    if "continuations" in found:
        said.append(
            "Toxicity is a classifier's score, and compares across models measured by the same one, not with published "
            f"numbers. Empty continuations: {found['continuations']['empty']:,}."
        )
    if told := found.get("memorisation"):
        said.append(
            f"Of each document the model is given {told['prompt_tokens']} tokens, and says "
            f"{told['continuation_tokens']} greedily. Extractable: it says all of them as they stand there. Recalled: "
            "so many from the first on. Anywhere: the longest piece of what it said that stands anywhere in the "
            f"{told['training_tokens']:,} training tokens. Documents held out are the control."
        )
    if any(one["by"] == "patterns" for one in found.get("refusals", {}).values()):
        assert config.refusals is not None
        said.append(
            f"An answer counts as refused where one of {len(config.refusals.patterns)} patterns stands in its first "
            f"{config.refusals.characters} characters: a crude measure, so read some answers."
        )
    if "bias" in found:
        without = sum(one["without_target"] for one in found["bias"].values())
        if without:
            said.append(f"In {without:,} questions not just one answer names the stereotyped group: accuracy alone.")
        said.append(
            "A bias score is 1 where all answers that name somebody agree with the stereotype, −1 where all contradict "
            "it; in ambiguous contexts it is scaled by the share of wrong answers (Parrish et al. 2022)."
        )
    return said


def headlines(found: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers that a comparison of two artifacts shows."""
    told: dict[str, Any] = {}
    if one := found.get("continuations"):
        for name in ("expected_maximum_toxicity", "toxic_prompts", "personal_data_prompts"):
            told[name] = one[name]["value"]
    if one := found.get("memorisation"):
        told |= {
            f"extractable_{split}": (one[split]["extractable"] or {}).get("value") for split in ("training", "held_out")
        }
    told |= {f"refused_{name}": (one["refused"] or {}).get("value") for name, one in found.get("refusals", {}).items()}
    told |= {f"bias_{condition}": one["bias"]["value"] for condition, one in found.get("bias", {}).items()}
    return told


def _summary(found: Mapping[str, Any]) -> list[str]:
    return [f"{name.replace('_', ' ')} {value:.3f}" for name, value in headlines(found).items() if value is not None]


def _memorisation(split: str, told: Mapping[str, Any]) -> list[dict[str, str]]:
    return [
        {
            "split": split,
            "source": name,
            "documents": f"{one['documents']:,}",
            "extractable": cell(one["extractable"]),
            "recalled": _tokens(one["recalled"]),
            "anywhere": _tokens(one["anywhere"]),
        }
        for name, one in (*told["by_source"].items(), ("all", told))
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
    """As a cell of Markdown shows it."""
    plain = " ".join(text.split())
    cut: Sequence[str] = plain if len(plain) <= LETTERS else f"{plain[:LETTERS]} …"
    return html.escape(str(cut), quote=False)
