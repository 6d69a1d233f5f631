"""The model card: what the release is, how to load it, its scores, its verification and its lineage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.tokenizer import BASE_FIELD
from tasks.evaluate.scores import score_rows, verdict
from tasks.export.formats import FORMATS
from tasks.stage.pages import markdown_table


def parity_rows(result: Mapping[str, Any]) -> list[dict[str, str]]:
    """The verification as a table, one row per format."""
    return [
        {
            "format": name,
            "bytes": f"{proof['bytes']:,}",
            "mean divergence (nats)": f"{proof['mean_divergence']:.1e}",
            "largest difference": f"{proof['max_difference']:.1e}",
            "perplexity": f"{proof['perplexity']:.3f} ({proof['perplexity_increase']:+.2%})",
            "same greedy text": f"{proof['same_greedy']} of {proof['prompts']}",
        }
        for name, proof in result["formats"].items()
    ]


def model_card(
    config: Mapping[str, Any],
    scores: Mapping[str, Any] | None,
    result: Mapping[str, Any],
    lineage: Mapping[str, str],
    licence: str,
) -> str:
    """The card as Markdown. `config` is the model's config.json, `result` what verification measured; without `scores`
    the card says that none were measured."""
    shape = [
        {"field": name, "value": str(config[name])}
        for name in ("model_type", "vocab_size", "hidden_size", "n_embd", "num_hidden_layers", "n_layer",
                     "num_attention_heads", "n_head", "num_key_value_heads", "intermediate_size",
                     "max_position_embeddings", "n_positions", "sliding_window")
        if config.get(name) is not None
    ]  # fmt: skip
    loading = [{"format": name, "how to load": FORMATS[name].loading} for name in result["formats"]]
    parts = [
        "# Model card",
        f"A chat model made by Gristmill: {_begun(config)}, fine-tuned on instructions, aligned on preferences.",
        "## Formats",
        markdown_table(loading),
        "Prompts go through the chat template that each format carries.",
        "## Architecture",
        markdown_table(shape),
        *_scores(scores),
        "## Verification",
        "Each format was loaded in its own runtime and compared with the checkpoint on held-out text, whose perplexity "
        f"under the checkpoint is {result['perplexity']:.3f}.",
        markdown_table(parity_rows(result)),
        "## Lineage",
        markdown_table([{"artifact": what, "SHA-256": digest} for what, digest in lineage.items()]),
        "`gristmill store lineage` follows these to the sources.",
    ]
    if licence:
        parts += ["## Licence", licence]
    return "\n\n".join(parts) + "\n"


def _begun(config: Mapping[str, Any]) -> str:
    base = config.get(BASE_FIELD)
    return "pretrained from scratch" if base is None else f"begun with the base model {base}"


def _scores(scores: Mapping[str, Any] | None) -> list[str]:
    if scores is None:
        return ["## Scores", "Not evaluated: the profile leaves evaluation out."]
    note = f"± is one standard error. {verdict(scores)}"
    return ["## Scores", markdown_table(score_rows(scores)), note]
