"""The child of `export`: `python -m tasks.export.run SPEC` writes each format, opens it again and compares."""

from __future__ import annotations

from pathlib import Path

import torch

from models.runtimes.protocol import RuntimeFault
from storage.errors import ParityError
from storage.shards.token_stream import TokenStream
from tasks.children.child import emit, run_as_child
from tasks.children.spec import ChildSpec
from tasks.export.config import ExportConfig
from tasks.export.formats import FORMATS
from tasks.export.parity import Parity, Reference, require
from tasks.training.peak import peak_memory


class ExportSpec(ChildSpec):
    """Written as JSON by the stage."""

    config: ExportConfig
    model: Path
    tokenizer_digest: str
    validation: list[Path]


def run(path: Path) -> None:
    """Write and prove every format of the spec; parity as JSON to `spec.result`. Raises ParityError."""
    spec = ExportSpec.model_validate_json(path.read_text())
    torch.set_num_threads(spec.runtime.compute.threads)
    reference = Reference(spec.model, TokenStream(spec.validation, tokenizer_digest=spec.tokenizer_digest), spec.config)
    proved = {}
    for number, name in enumerate(spec.config.formats):
        emit(done=number, note=name)
        FORMATS[name].write(spec.model, spec.out)
        parity = prove(reference, name, spec.out, spec.runtime.compute.threads)
        proved[name] = {
            "bytes": _size(FORMATS[name].path(spec.out)),
            **require(name, parity, spec.config.tolerance(name)),
        }
    facts = {"peak_memory_bytes": peak_memory()}
    result = {"perplexity": round(reference.perplexity, 8), "formats": proved, "facts": facts}
    spec.finish(result)


def prove(reference: Reference, name: str, release: Path, threads: int) -> Parity:
    """Compare a format of a release with the checkpoint, in its own runtime. Raises ParityError where that fails."""
    try:
        runtime = FORMATS[name].open(release, threads)
        try:
            return reference.compare(runtime)
        finally:
            runtime.close()
    except RuntimeFault as error:
        raise ParityError(f"{error}.", "This is a defect; report it.") from error


def _size(written: Path) -> int:
    return sum(file.stat().st_size for file in ([written] if written.is_file() else written.iterdir()))


if __name__ == "__main__":
    run_as_child(run)
