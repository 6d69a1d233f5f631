"""The model card: what the release is, how to use it, what it was made from, what was measured of it, and what was not.

A hub renders it, so it begins with a head for machines. It is made only from the release's inputs and config: what
earlier stages report is in the config (see `provenance.py`), and the card never names times.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from typing import Any

from models.kernels.virtual_tokens import FIELD
from models.tokenizer import BASE_FIELD
from tasks.export.card.front_matter import front_matter, released_scores
from tasks.export.card.licences import WARNING, bound, by_licence, licence_sections, stated, warnings
from tasks.export.card.provenance import Provenance, Synthetic
from tasks.export.card.speculation import speculative_decoding
from tasks.export.card.usage import usage
from tasks.export.config import ExportConfig
from tasks.significance.scores import score_rows, verdict
from tasks.stage.display.pages import markdown_table

SHAPE = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "n_embd",
    "num_hidden_layers",
    "n_layer",
    "num_attention_heads",
    "n_head",
    "num_key_value_heads",
    "intermediate_size",
    "max_position_embeddings",
    "n_positions",
    "sliding_window",
    FIELD,
)
_MARKUP = re.compile(r"[\\`*_\[\]|]")
CHANGES = {"prune": "pruned", "distill": "distilled from a teacher's predictions", "sft": "fine-tuned on instructions"}
PREFERENCES = ("dpo", "orpo", "cpo", "kto", "ppo", "grpo")
_ENERGY = (
    "Energy: not recorded. How long the stages took differs from run to run, so it is in the manifests of the "
    "artifacts and not in a release."
)


def parity_rows(result: Mapping[str, Any]) -> list[dict[str, str]]:
    """The verification as a table, with a row per format."""
    return [
        {
            "format": name,
            "bytes": f"{proof['bytes']:,}",
            "mean divergence (nats)": f"{proof['mean_divergence']:.1e}",
            "largest difference": f"{proof['max_difference']:.1e}",
            "perplexity": f"{proof['perplexity']:.3f} ({proof['perplexity_increase']:+.2%}, "
            f"{proof['increase_low']:+.2%} to {proof['increase_high']:+.2%})",
            "same likeliest token": f"{proof['same_top']:.1%}",
            "same greedy text": f"{proof['same_greedy']} of {proof['prompts']}",
        }
        for name, proof in result["formats"].items()
    ]


def model_card(
    config: ExportConfig,
    model: Mapping[str, Any],
    scores: Mapping[str, Any] | None,
    result: Mapping[str, Any],
    lineage: Mapping[str, str],
    *,
    modelfile: bool = False,
    remarks: Mapping[str, str] | None = None,
) -> str:
    """The card as Markdown. `model` is the model's config.json, `result` the child's measurements. Without `scores`,
    the card says that the model was not evaluated."""
    provenance = config.provenance
    name = config.name or _plain_name(model, result)
    shape = [{"field": field, "value": str(model[field])} for field in SHAPE if model.get(field) is not None]
    parts = [
        front_matter(name, config.weights_licence, provenance, scores),
        f"# {_inline(name)}",
        *(f"> **{WARNING.strip()}** {one}" for one in warnings(bound(provenance))),
        f"A model of {result['parameters']:,} parameters, made by Gristmill: {_history(model, provenance)}.",
        "## Usage",
        *usage(result["formats"], modelfile=modelfile, remarks=remarks or {}, virtual=FIELD in model),
        *_samples(result.get("samples", []), result.get("answers", [])),
        *speculative_decoding(result.get("speculation", {}), config.speculation),
        "## Licences",
        *licence_sections(provenance, config.weights_licence, config.licence),
        *_document_licences(provenance),
        *_training(provenance, result),
        "## Architecture",
        markdown_table([{"field": "parameters", "value": f"{result['parameters']:,}"}, *shape]),
        *_scores(scores),
        "## Verification",
        "Each format was loaded in its own runtime (in float32 if that is transformers) and compared with the "
        f"checkpoint on held-out text, whose perplexity under the checkpoint is {result['perplexity']:.3f}.",
        markdown_table(parity_rows(result)),
        "## Limits",
        "\n".join(f"- {limit}" for limit in _limits(model, provenance, scores)),
        "## Lineage",
        markdown_table([{"artifact": what, "SHA-256": digest} for what, digest in lineage.items()]),
        "`gristmill store lineage` follows these to the sources.",
    ]
    return "\n\n".join(parts) + "\n"


def _plain_name(model: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    count = result["parameters"]
    unit, letter = next(((unit, letter) for unit, letter in ((1e9, "B"), (1e6, "M")) if count >= unit), (1e3, "K"))
    origin = f", from {str(model[BASE_FIELD]).partition('@')[0]}" if BASE_FIELD in model else ""
    return f"{model['model_type']} of {count / unit:.3g}{letter} parameters{origin}"


def _history(model: Mapping[str, Any], provenance: Provenance | None) -> str:
    base = model.get(BASE_FIELD)
    parts = ["pretrained from scratch" if base is None else f"started from the base model {base}"]
    links = {training.stage: training.how for training in provenance.training} if provenance else {}
    parts += [words for name, words in CHANGES.items() if name in links]
    parts += (
        [f"aligned by {', '.join(aligned)}"] if (aligned := [name for name in links if name in PREFERENCES]) else []
    )
    parts += [f"merged ({_inline(links['merge'])})"] if "merge" in links else []
    return ", ".join(parts)


def _samples(samples: list[Mapping[str, str]], answers: list[Mapping[str, str]]) -> list[str]:
    parts = []
    if answers:
        how = "To prompts through the chat template: greedy, by the checkpoint, and cut after a number of tokens."
        compared = [_compared_with_base(one) for one in answers[:3] if "base" in one]
        parts += ["### Answers", how, *([markdown_table(compared)] if compared else map(_sample, answers[:3]))]
    continued = [one for one in samples[:3] if one["text"].strip() or not answers]
    if continued:
        how = (
            "Greedy continuations by the checkpoint. The verification below counts the texts that each format "
            "continues alike, except near-ties:"
        )
        parts += ["### Samples", how, *map(_sample, continued)]
    return parts


def _compared_with_base(one: Mapping[str, str]) -> dict[str, str]:
    texts = {"asked": one["prompt"], "the base says": one["base"], "this model": one["text"]}
    return {who: _in_table(text) for who, text in texts.items()}


def _sample(one: Mapping[str, str]) -> str:
    return f"**{_inline(one['prompt'])}**\n\n{_fenced(one['text'])}"


def _inline(text: str) -> str:
    """Text on one line that neither HTML nor Markdown reads as markup."""
    return _MARKUP.sub(r"\\\g<0>", html.escape(" ".join(text.split()), quote=False))


def _in_table(text: str) -> str:
    return _inline(text).replace(r"\|", "|")  # the table escapes bars itself


def _fenced(text: str) -> str:
    """A text verbatim, within a fence longer than any in it."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}text\n{text}\n{fence}"


def _document_licences(provenance: Provenance | None) -> list[str]:
    rows = [
        {"licence": _in_table(licence), "documents": f"{number:,}"}
        for licence, number in by_licence(provenance).items()
    ]
    how = "Licences that documents of these sources state themselves, counted as downloaded:"
    return [how, markdown_table(rows)] if rows else []


def _training(provenance: Provenance | None, result: Mapping[str, Any]) -> list[str]:
    parts = ["## Training", f"Plain weights are released in {result['dtype']}."]
    if provenance is None:
        return [*parts, "Data and training were not recorded.", _ENERGY]
    if provenance.funnel:
        rows = [{"after": stage, "left": f"{number:,}"} for stage, number in provenance.funnel.items()]
        parts += ["The data left after each stage:", markdown_table(rows)]
    if provenance.sources:
        sources = [
            {
                "source": source.name,
                "used as": ", ".join(source.used_as),
                "data set": source.dataset or "–",
                "licence": stated(provenance)[source.name],
            }
            for source in provenance.sources
        ]
        parts.append(markdown_table(sources))
    if provenance.synthetic:
        parts.append(_written_by_a_model(provenance.synthetic))
    if provenance.training:
        stages = [
            {
                "stage": training.stage,
                "how": _in_table(training.how),
                "measured": ", ".join(_measure(*one) for one in training.measures.items()),
            }
            for training in provenance.training
        ]
        parts.append(markdown_table(stages))
    parts += [f"The last training computed in {provenance.precision}."] if provenance.precision else []
    return [*parts, _ENERGY]


def _written_by_a_model(text: Synthetic) -> str:
    """A sentence on text that a model wrote."""
    share = ""
    if text.share is not None:
        share = f" They are {text.documents:,} documents with {text.tokens:,} tokens, {text.share:.1%} of all."
    prompts = ", ".join(text.prompts)
    return (
        f"The sources that begin with `synthetic/` are text that the model {_inline(text.model)} wrote from documents "
        f"of the other sources, by the prompts {prompts}.{share}"
    )


def _measure(name: str, value: float) -> str:
    return f"{name.replace('_', ' ')} {value:,}" if isinstance(value, int) else f"{name.replace('_', ' ')} {value:.4g}"


def _scores(scores: Mapping[str, Any] | None) -> list[str]:
    if scores is None:
        return ["## Scores", "Not evaluated: the profile leaves evaluation out."]
    note = f"± is one standard error. {verdict(scores)}"
    return ["## Scores", markdown_table(score_rows(scores)), note]


def _limits(model: Mapping[str, Any], provenance: Provenance | None, scores: Mapping[str, Any] | None) -> list[str]:
    context = model.get("max_position_embeddings") or model.get("n_positions")
    limits = [f"It sees at most {context:,} tokens at a time."] if context else []
    if provenance and provenance.languages:
        languages = ", ".join(provenance.languages)
        limits.append(f"Documents were filtered for {languages}: it knows little of other languages.")
    else:
        limits.append("The languages of its data were not recorded.")
    if scores is None:
        return [*limits, "It was not evaluated: neither its knowledge nor its safety was measured."]
    measured = released_scores(scores, provenance.link if provenance else "")["tasks"]
    chance = [task for task, score in measured.items() if score["worth"] not in (None, "above chance")]
    limits += [f"No better than chance in {', '.join(sorted(chance))}."] if chance else []
    safe = [task for task in measured if task.startswith("safety")]
    limits.append(
        f"Its safety was measured only by {', '.join(safe)}."
        if safe
        else "Its safety was not measured: whether it produces abuse, falsehoods or personal data."
    )
    return limits
