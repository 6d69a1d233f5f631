"""`python -m benchmarks.export.ladder MODEL_FOLDER … --text FILE`: every format of each model, proved as a release is.

The first half of the text calibrates, the second is what formats are proved on, as in the stage. Limits are taken from
this table: a format is measured on models of several sizes, and none is refused here.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from models.pretrained import context_of, load_config
from models.tokenizer import load_tokenizer
from storage.errors import ConfigError, ParityError
from tasks.export.config import ExportConfig
from tasks.export.formats import FORMATS
from tasks.export.formats.source import Source
from tasks.export.formats.weights import count_parameters
from tasks.export.proof.held_out import LONGEST
from tasks.export.proof.reference import Reference
from tasks.export.run import prove

WHOLE = [name for name, known in FORMATS.items() if not known.needs_base]
HEAD = (
    "format",
    "MB",
    "bits a weight",
    "memory, MB",
    "tokens/s read",
    "written",
    "perplexity",
    "increase (95 %)",
    "divergence, nats",
    "of the runtime",
    "same likeliest",
    "worst row",
    "made in, s",
)


def main() -> None:
    """Print a table for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+", help="model folders of transformers")
    parser.add_argument("--text", type=Path, required=True, help="plain text, UTF-8")
    parser.add_argument("--formats", nargs="+", choices=[*FORMATS], default=WHOLE)
    parser.add_argument("--calibration", type=int, default=16384, help="tokens to calibrate on")
    parser.add_argument("--positions", type=int, default=4096, help="tokens to prove on")
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    text = asked.text.read_text(encoding="utf-8")
    for model in asked.models:
        calibration = windows(model, text[: len(text) // 2], asked.calibration)
        proof = windows(model, text[len(text) // 2 :], asked.positions)
        source = Source(model, calibration, threads=asked.threads)
        with tempfile.TemporaryDirectory() as scratch:
            reference = Reference(model, proof, ExportConfig(), Path(scratch))
            weights = count_parameters(model)
            predicted = sum(len(window) - 1 for window in proof)
            print(f"\n{load_config(model).model_type}, {weights / 1e6:,.1f}M weights, {predicted:,} positions\n")
            print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
            for name in asked.formats:
                print(f"| {name} | {' | '.join(row(name, source, reference, weights))} |", flush=True)


def row(name: str, source: Source, reference: Reference, weights: int) -> Iterator[str]:
    """The cells of a format; why there is none of this model or on this machine."""
    with tempfile.TemporaryDirectory() as folder:
        release = Path(folder)
        began = time.monotonic()
        try:
            if lacking := FORMATS[name].needs():
                yield f"needs: {lacking}"
                return
            FORMATS[name].check(source.folder)
            FORMATS[name].write(source, release)
            seconds = time.monotonic() - began
            error, parity, speed = prove(reference, name, release, source.threads)
        except (ConfigError, ParityError) as refused:
            yield f"not of this model: {refused.message}"
            return
        size = sum(file.stat().st_size for file in FORMATS[name].files(release) if file.suffix != ".json")
        yield f"{size / 1e6:,.1f}"
        yield f"{8 * size / weights:.2f}"
        yield f"{speed.peak_memory / 1e6:,.0f}"
        yield f"{speed.prompt:,.0f}"
        yield f"{speed.generation:,.0f}"
        yield f"{parity.perplexity:.3f}"
        yield f"{parity.perplexity_increase:+.2%} ({parity.increase_low:+.2%} to {parity.increase_high:+.2%})"
        yield f"{parity.mean_divergence:.1e}"
        yield "–" if parity.runtime_divergence is None else f"{parity.runtime_divergence:.1e}"
        yield f"{parity.same_top:.1%}"
        yield f"{error.row.error:.1e}" if error.tensors else "–"
        yield f"{seconds:.0f}"


def windows(model: Path, text: str, tokens: int) -> tuple[tuple[int, ...], ...]:
    """So many ids of a text as the model's tokenizer encodes it, in windows of a context or of LONGEST, at even
    distances."""
    ids = load_tokenizer(model).encode(text, add_special_tokens=False)
    length = min(context_of(load_config(model)), LONGEST)
    count = min(-(-tokens // (length - 1)), len(ids) // length)
    step = len(ids) // count
    return tuple(tuple(ids[number * step : number * step + length]) for number in range(count))


if __name__ == "__main__":
    main()
