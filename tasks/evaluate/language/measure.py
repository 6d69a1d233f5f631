"""The child of the stage `language_modelling`: `python -m tasks.evaluate.language.measure SPEC` measures one model."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch

from models.kernels.attention import for_any_shape
from models.pretrained import open_pretrained
from models.tokenizer import load_tokenizer
from storage.errors import TrainingError
from storage.shards.parquet import parquet_writer
from tasks.children.child import emit, run_as_child
from tasks.children.devices import device_of
from tasks.evaluate.language.calibration import calibration
from tasks.evaluate.language.files import path_of, read_texts
from tasks.evaluate.language.held_out import HeldOut, by_length, by_position, by_source, measure_held_out
from tasks.evaluate.language.llama import LlamaScorer
from tasks.evaluate.language.rolling import Document, measure_texts, summary
from tasks.evaluate.language.scores import Scorer, TransformersScorer
from tasks.evaluate.language.stage import LanguageSpec
from tasks.evaluate.other_models.gguf import gguf_in
from tasks.significance.texts import DOCUMENTS
from tasks.stage.runtime import ComputeRuntime
from tasks.training.device_peak import peak_memory

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

SCHEMA = pa.schema(
    [
        pa.field("text", pa.string(), nullable=False),  # the source of a held-out document, or the name of a file
        pa.field("held_out", pa.bool_(), nullable=False),
        pa.field("number", pa.int64(), nullable=False),  # in its split, or in its file
        pa.field("bytes", pa.float64(), nullable=False),  # of the tokens measured
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field("nats", pa.float64(), nullable=False),
    ]
)
DIGITS = 6  # decimals of float32 sums that are the same each time on one machine
Rows = list[tuple[str, bool, int, float, int, float]]


@for_any_shape()
def run(path: Path) -> None:
    """Measure the model as the spec says. Writes a row per document, and the rest as the result."""
    spec = LanguageSpec.model_validate_json(path.read_text())
    compute = spec.runtime.compute
    torch.set_num_threads(compute.cpu_threads())
    scorer = scorer_of(spec.model, spec.config.dtype, compute)
    tokenizer = load_tokenizer(spec.model)
    result: dict[str, Any] = {"files": {}}
    rows: Rows = []
    tokens, started = 0, time.perf_counter()
    if spec.shards:
        held_out = measure_held_out(
            scorer,
            tokenizer,
            spec.shards,
            digest=spec.tokenizer_digest,
            max_tokens=spec.config.validation_tokens,
            done=lambda done, total: emit(done=done, total=total, unit="windows", note="held-out text"),
        )
        result["held_out"] = of_held_out(held_out, spec.config.bins)
        rows += _held_out_rows(held_out)
        tokens += held_out.likelihood.tokens
    for name in sorted(spec.config.files):
        documents = _measure_file(spec, scorer, tokenizer, name)
        result["files"][name] = summary(documents)
        rows += [(name, False, n, float(d.bytes), d.tokens, d.nats) for n, d in enumerate(documents)]
        tokens += result["files"][name]["tokens"]
    _check_finite(rows)
    _write(spec.out / DOCUMENTS, rows)
    facts = {
        "device": str(scorer.device),
        "dtype": scorer.dtype,
        "tokens_per_second": round(tokens / (time.perf_counter() - started)),
        "peak_memory_bytes": peak_memory(scorer.device),
    }
    spec.finish({**result, "facts": facts})


def scorer_of(folder: Path, dtype: str, compute: ComputeRuntime) -> Scorer:
    """The model of a folder: in llama.cpp if it has a GGUF file, otherwise in transformers."""
    gguf = gguf_in(folder)
    if gguf is not None:
        return LlamaScorer(gguf, compute.cpu_threads())
    return TransformersScorer(load(folder, dtype, device_of(compute)))


def load(folder: Path, dtype: str, device: torch.device) -> PreTrainedModel:
    """Open a model in `dtype`. "auto" is float32 on a CPU and the dtype of its weights on a GPU."""
    chosen = ("auto" if device.type == "cuda" else "float32") if dtype == "auto" else dtype
    return open_pretrained(folder, device, dtype=chosen if chosen == "auto" else getattr(torch, chosen))


def of_held_out(held_out: HeldOut, bins: int) -> dict[str, Any]:
    """The results for held-out text. `bits_per_byte` is over the bytes of the split in proportion to the measured
    tokens, as everywhere else. That of a source or a length is over the bytes of just those tokens."""
    measured, bits = held_out.likelihood, held_out.bits_per_byte()
    return {
        "bits_per_byte": measured.bits_per_byte,
        "bits_per_byte_stderr": bits.error if bits else None,
        "nats_per_token": measured.nats_per_token,
        "tokens": measured.tokens,
        "is_sample": measured.tokens < int(held_out.documents.starts[-1]) - 1,
        "documents": bits.documents if bits else 0,
        "by_source": by_source(held_out),
        "by_length": by_length(held_out),
        "by_position": by_position(held_out),
        "calibration": calibration(held_out.scores, held_out.document, bins),
    }


def _measure_file(spec: LanguageSpec, scorer: Scorer, tokenizer: PreTrainedTokenizerFast, name: str) -> list[Document]:
    path = path_of(name, spec.config.files[name])
    return measure_texts(
        scorer,
        tokenizer,
        read_texts(name, path),
        context=spec.config.context,
        done=lambda tokens: emit(done=tokens, total=0, unit="tokens", note=name),
    )


def _held_out_rows(held_out: HeldOut) -> Rows:
    documents = held_out.documents
    tokens = np.bincount(held_out.document, minlength=len(documents.source))
    measured = np.flatnonzero(tokens)
    return [
        (documents.names[source], True, number, size, count, nats)
        for source, number, size, count, nats in zip(
            documents.source[measured].tolist(),
            measured.tolist(),
            held_out.text_bytes[measured].tolist(),
            tokens[measured].tolist(),
            held_out.nats[measured].tolist(),
            strict=True,
        )
    ]


def _check_finite(rows: Rows) -> None:
    for text, _, number, *_, nats in rows:
        if not math.isfinite(nats):
            raise TrainingError(
                f"The model's loss on document {number:,} of {text} is {nats}.",
                "Its weights are damaged or its dtype overflows: set evaluate.language.dtype to float32.",
            )


def _write(path: Path, rows: Rows) -> None:
    columns = [list(column) for column in zip(*rows, strict=True)]
    columns[-1] = [round(nats, DIGITS) for nats in columns[-1]]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
    with parquet_writer(path, SCHEMA, compression="zstd") as writer:
        writer.write_batch(pa.record_batch(arrays, SCHEMA))


if __name__ == "__main__":
    run_as_child(run)
