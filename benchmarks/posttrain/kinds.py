"""`python -m benchmarks.posttrain.kinds --store store`: which kind of adapter learns most?

The base of `tiny` learns some of its instructions. Prefix and prompt tuning train as many numbers as LoRA of rank 1.
PiSSA (Meng et al. 2024) begins LoRA's factors with the largest singular values of a matrix, and LoRA+ (Hayou et al.
2024) trains B at 16 times the rate of A. Both are compared with LoRA of rank 8.

Every kind gets the best of three learning rates, by the held-out loss under a seed of its own. Measured is the loss of
the answers held out, in nats a token, under the other seeds, which decide first weights and order, and how much it is
below LoRA's of the same size under the same seed.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.posttrain.seeds import add_store, of_tiny, parser_of, print_mean
from models.kernels.cross_entropy import IGNORED
from models.pretrained import load_pretrained
from models.tokenizer import load_tokenizer, padding_id
from storage.shards.lines import read_json_lines
from tasks.posttrain.rows.form import Dropped
from tasks.posttrain.rows.instruction import render_instruction
from tasks.training.adapters.config import LoraConfig, PrefixConfig, PromptConfig
from tasks.training.adapters.lora import peft_config
from tasks.training.adapters.virtual import begin_as_text

PLUS = 16
LORA, VIRTUAL = (3e-3, 1e-2, 3e-2), (1e-2, 3e-2, 1e-1)
RATES = {
    "LoRA 1": LORA,
    "prefix": VIRTUAL,
    "prompt": VIRTUAL,
    "LoRA 8": LORA,
    "PiSSA 8": LORA,
    "LoRA+ 8": (1e-3, 3e-3, 1e-2),
}
Rows = list[dict[str, list[int]]]


def main() -> None:
    """Train and measure, and print the table."""
    parser = parser_of("kinds", __doc__)
    add_store(parser)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--longest", type=int, default=96, help="tokens of a row, longer ones are left out")
    parser.add_argument("--kinds", nargs="+", choices=list(RATES), default=list(RATES))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    base = of_tiny(options.store, "pretrain", "model").path
    train, held_out = split(options, base)
    print(f"{len(train)} rows to learn from, {len(held_out)} held out\n")
    print("| kind | numbers trained | learning rate | seed | held-out loss |\n|---|---|---|---|---|")
    losses: dict[str, list[float]] = {}
    for kind in options.kinds:
        tried = {rate: learned(kind, rate, options.seeds, options, base, train, held_out)[0] for rate in RATES[kind]}
        best = min(tried, key=lambda rate: tried[rate])
        for seed in range(options.seeds):
            loss, numbers = learned(kind, best, seed, options, base, train, held_out)
            losses.setdefault(kind, []).append(loss)
            print(f"| {kind} | {numbers:,} | {best:g} | {seed} | {loss:.4f} |", flush=True)
    for kind, found in losses.items():
        beside = "LoRA 1" if kind in ("prefix", "prompt") else "LoRA 8"
        if kind != beside and kind != "LoRA 1" and beside in losses:
            less = [one - other for one, other in zip(found, losses[beside], strict=True)]
            print_mean(f"{kind} less {beside}:", less, "+.4f")


def split(options: argparse.Namespace, base: Path) -> tuple[Rows, Rows]:
    """Rendered rows to learn from, and every twentieth, held out."""
    tokenizer = load_tokenizer(base)
    pairs = of_tiny(options.store, "pairs", "instructions")
    rendered = []
    for row in (row for file in pairs.files("*.jsonl") for row in read_json_lines(file)):
        with suppress(Dropped):
            found: Any = render_instruction(row, tokenizer, options.longest)
            rendered.append({name: found[name] for name in ("input_ids", "labels")})
    return [row for number, row in enumerate(rendered) if number % 20], rendered[::20]


def learned(
    kind: str, rate: float, seed: int, options: argparse.Namespace, base: Path, train: Rows, held_out: Rows
) -> tuple[float, int]:
    """The held-out loss after a training, and the numbers trained."""
    torch.manual_seed(seed)
    model = adapted(kind, base, seed)
    numbers = [value for value in model.parameters() if value.requires_grad]
    optimizer = torch.optim.AdamW(groups(kind, model, rate), weight_decay=0.0)
    order = torch.randperm(len(train)).tolist()
    warmup = max(1, options.steps // 20)
    pad = padding_id(load_tokenizer(base))
    for step in range(options.steps):
        done = max(0.0, (step - warmup) / (options.steps - warmup))
        scale = min((step + 1) / warmup, 0.5 * (1 + math.cos(math.pi * done)))
        for group in optimizer.param_groups:
            group["lr"] = scale * group["first"]
        chosen = [train[order[(step * options.batch + place) % len(order)]] for place in range(options.batch)]
        total, count = loss_of(model, chosen, pad)
        (total / count).backward()
        torch.nn.utils.clip_grad_norm_(numbers, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return held_out_loss(model, held_out, options.batch, pad), sum(value.numel() for value in numbers)


def adapted(kind: str, base: Path, seed: int) -> Any:
    """PEFT's model with a new adapter of a kind."""
    from peft import get_peft_model

    model = load_pretrained(base)
    if kind in ("prefix", "prompt"):
        one_token = 2 * model.config.num_hidden_layers * model.config.num_key_value_heads * model.config.head_dim
        size = sum(sum(part.weight.shape) for part in linear_layers(model))  # of LoRA of rank 1
        tokens = size // (one_token if kind == "prefix" else model.config.hidden_size)
        settings = PrefixConfig(tokens=tokens) if kind == "prefix" else PromptConfig(tokens=tokens)
        peft: Any = get_peft_model(model, peft_config("sft", settings, model))
        begin_as_text(peft, seed)
        return peft.train()
    rank = int(kind.split()[1])
    config = peft_config("sft", LoraConfig(rank=rank, alpha=rank), model)
    if kind.startswith("PiSSA"):
        config.init_lora_weights = "pissa"
    return get_peft_model(model, config).train()


def linear_layers(model: Any) -> Iterator[Any]:
    """All but the head."""
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and module is not model.get_output_embeddings():
            yield module


def groups(kind: str, model: Any, rate: float) -> list[dict[str, Any]]:
    """The trained parameters with their rates."""
    faster = [value for name, value in model.named_parameters() if value.requires_grad and "lora_B" in name]
    others = [value for name, value in model.named_parameters() if value.requires_grad and "lora_B" not in name]
    ratio = PLUS if kind.startswith("LoRA+") else 1
    parts = [(others, rate), (faster, ratio * rate)]
    return [{"params": values, "lr": first, "first": first} for values, first in parts if values]


def loss_of(model: Any, rows: Rows, pad: int) -> tuple[torch.Tensor, int]:
    """The summed loss of the answers of some rows, and their tokens."""
    longest = max(len(row["input_ids"]) for row in rows)

    def padded(name: str, filler: int) -> torch.Tensor:
        return torch.tensor([[*row[name], *[filler] * (longest - len(row[name]))] for row in rows])

    ids, labels = padded("input_ids", pad), padded("labels", IGNORED)
    mask = torch.tensor([[1] * len(row["labels"]) + [0] * (longest - len(row["labels"])) for row in rows])
    logits = model(input_ids=ids, attention_mask=mask).logits[:, -longest:-1]
    targets = labels[:, 1:]
    total = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")
    return total, int((targets != IGNORED).sum())


@torch.no_grad()
def held_out_loss(model: Any, rows: Rows, size: int, pad: int) -> float:
    """In nats a token."""
    model.eval()
    found = [loss_of(model, rows[start : start + size], pad) for start in range(0, len(rows), size)]
    return float(sum(float(total) for total, _ in found) / sum(count for _, count in found))


if __name__ == "__main__":
    main()
