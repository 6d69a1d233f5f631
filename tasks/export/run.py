"""The child of `export`: `python -m tasks.export.run SPEC` writes each format, opens it again and compares."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from models.non_finite import not_finite
from models.pretrained import context_of, load_config
from models.runtimes.protocol import RuntimeFault
from models.tokenizer import BASE_FIELD, beginning, load_tokenizer
from storage.errors import ParityError, TrainingError
from storage.shards.token_stream import TokenStream
from tasks.children.child import emit, run_as_child
from tasks.children.devices import device_of
from tasks.children.spec import ChildSpec
from tasks.export.config import ExportConfig, SpeculationConfig
from tasks.export.dtype import compute_dtype, weights_dtype
from tasks.export.formats import FORMATS, GUESSED
from tasks.export.formats.source import Adapted, Source
from tasks.export.formats.weights import count_parameters
from tasks.export.proof.compare import Parity, compare, perplexity
from tasks.export.proof.config import check_config
from tasks.export.proof.held_out import held_out
from tasks.export.proof.judge import require
from tasks.export.proof.probes import probe
from tasks.export.proof.reference import Reference, answers_of
from tasks.export.proof.speculation import speculation, write_draft
from tasks.export.proof.speed import Speed, measure
from tasks.export.proof.weights import WeightError, WeightErrors
from tasks.training.device_peak import peak_memory


class ExportSpec(ChildSpec):
    """The child's settings, which the stage writes as JSON."""

    config: ExportConfig
    model: Path
    tokenizer_digest: str
    validation: list[Path]
    base: Path | None = None
    adapters: tuple[Path, ...] = ()
    draft: Path | None = None

    @property
    def adapted(self) -> Adapted | None:
        """The base and adapters of the model, if the stage passed them on."""
        if self.base is None or not self.adapters:
            return None
        config = json.loads((self.base / "config.json").read_text(encoding="utf-8"))
        return Adapted(self.base, self.adapters, config.get(BASE_FIELD, ""), self.scratch)


def run(path: Path) -> None:
    """Write and prove every format of the spec, and write the results as JSON to `spec.result`. Raises ParityError, and
    TrainingError for a model with NaN or infinite weights."""
    spec = ExportSpec.model_validate_json(path.read_text())
    threads, device = spec.runtime.compute.cpu_threads(), str(device_of(spec.runtime.compute))
    torch.set_num_threads(threads)
    _require_numbers(spec.model, spec.draft)
    stream = TokenStream(spec.validation, tokenizer_digest=spec.tokenizer_digest)
    context = context_of(load_config(spec.model))
    text = held_out(
        stream,
        context,
        calibration=spec.config.calibration_tokens,
        proof=spec.config.positions,
        begin=beginning(load_tokenizer(spec.model)),
    )
    before = answers_of(spec.base, spec.config, device) if spec.base else {}  # before the other model takes memory
    reference = Reference(spec.model, text.proof, spec.config, spec.scratch / "reference", device)
    dtype = weights_dtype(spec.config.dtype, spec.config.provenance, spec.model)
    source = Source(
        spec.model,
        text.calibration,
        name=spec.config.name,
        licence=spec.config.weights_licence or "",
        threads=threads,
        device=device,
        dtype=dtype,
        compute=compute_dtype(spec.config.dtype),
        adapted=spec.adapted,
    )
    proved, speeds = {}, {}
    for number, name in enumerate(spec.config.formats):
        emit(done=number, note=f"{name}: writing")
        FORMATS[name].write(source, spec.out)
        emit(done=number, note=f"{name}: proving")
        weights, parity, speed = prove(reference, name, spec.out, threads, spec.adapted)
        written = sum(file.stat().st_size for file in FORMATS[name].files(spec.out))
        proved[name] = {"bytes": written, **require(name, parity, weights, spec.config.tolerance(name, dtype))}
        speeds[name] = {key: round(value, 1) for key, value in asdict(speed).items()}
    guess_counts, seconds = _speculate(spec, reference, source)
    spec.finish(
        {
            "perplexity": round(perplexity(reference), 8),
            "probes": probe(reference.runtime, reference.probed),
            "dtype": dtype,
            "parameters": count_parameters(spec.model),
            "samples": reference.samples(),
            **({"answers": answers} if (answers := reference.chat_samples(before)) else {}),
            "formats": proved,
            **({"speculation": guess_counts} if guess_counts else {}),
            "remarks": {name: remark for name in spec.config.formats if (remark := FORMATS[name].remark(spec.model))},
            "facts": {"peak_memory_bytes": peak_memory(), "speeds": speeds, "device": device, **seconds},
        }
    )


def _require_numbers(model: Path, draft: Path | None) -> None:
    """Raises TrainingError for NaN and infinite weights, on which each format would fail in its own way."""
    for what, folder in (("model", model), ("draft", draft)):
        if folder is not None and (problem := not_finite(folder)):
            raise TrainingError(
                f"The {what} can't be released: {problem}.",
                "Train it again with a lower learning rate, or name another.",
            )


def _speculate(spec: ExportSpec, reference: Reference, source: Source) -> tuple[dict[str, Any], dict[str, Any]]:
    """Measure guesses, if there is a draft or the profile requests n-grams: counts, and seconds as facts."""
    config, usable = spec.config, spec.config.guessed
    if not usable or (spec.draft is None and config.speculation is None):
        return {}, {}
    best: dict[Path, str] = {}  # one format per runtime, as guesses are right equally often in all of its formats
    for name in usable:
        best.setdefault(GUESSED[name].draft(spec.out), name)
    formats = list(best.values())
    if spec.draft is not None:
        write_draft(spec.draft, source, formats, spec.out)
    emit(done=len(config.formats), note="speculative decoding")
    counts, seconds = speculation(
        reference, formats, spec.out, spec.runtime.compute.cpu_threads(), config.speculation or SpeculationConfig()
    )
    return counts, {"speculation_seconds": seconds}


def prove(
    reference: Reference, name: str, release: Path, threads: int, adapted: Adapted | None = None
) -> tuple[WeightError, Parity, Speed]:
    """Compare a format's weights, and its answers in its own runtime, with the checkpoint. An adapter is opened over
    its base. Raises ParityError if the format can't be opened or differs in what must be equal."""
    chosen = FORMATS[name].over(adapted)
    try:
        check_config(chosen, reference.folder, release)
        runtime, speed = measure(lambda: chosen.open(release, threads, reference.device), reference.windows[0])
        try:  # weights only now, as a runtime's error says best what is wrong with a file
            errors = WeightErrors(reference.folder)
            parity = compare(reference, runtime, errors.watch(chosen.weights(reference.folder, release)))
            return errors.largest(), parity, speed
        finally:
            runtime.close()
    except RuntimeFault as error:
        raise ParityError(f"{error}.", "This is a defect: report it.") from error


if __name__ == "__main__":
    run_as_child(run)
