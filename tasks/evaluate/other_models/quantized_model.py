"""The stage `quantized_model`: writes a link of the chain in a format of a release, to measure it as users run it."""

from __future__ import annotations

from pathlib import Path

from storage.artifact import Artifact
from tasks.children.spec import ChildSpec
from tasks.children.supervise import run_module
from tasks.evaluate.other_models.config import QuantizedConfig
from tasks.stage import stage
from tasks.stage.output import Output
from tasks.training.held_out import held_out_shards
from tasks.training.model_folder import check_tokenizer


class QuantizedSpec(ChildSpec):
    """The child's settings."""

    config: QuantizedConfig
    model: Path
    tokenizer_digest: str
    held_out: list[Path]


@stage(version=2, part_of="evaluate", runtime=("compute",))
def quantized_model(config: QuantizedConfig, model: Artifact, text: Artifact | None, out: Output) -> None:
    """Write model/: the weights in the format, with the tokenizer and the config, like other models.

    `text`, token shards or benchmarks, is for formats that are fitted to text: they use its first half, as in a
    release. Raises ConfigError for a model that the format can't hold.
    """
    digest = check_tokenizer(model.path)
    spec = QuantizedSpec(
        config=config,
        runtime=out.runtime,
        model=model.path.resolve(),
        tokenizer_digest=digest,
        held_out=held_out_shards(text, model.path, digest, out.scratch) if text else [],
        scratch=out.scratch.resolve(),
        out=out.path.resolve(),
    )
    out.progress(0, 1, "models", config.format)
    result = run_module(
        "tasks.evaluate.other_models.quantize", spec, out, on_line=lambda line: None, ranks=False, keeps="nothing"
    )
    out.count(bytes=result["bytes"], summary=f"{config.format}, {result['bytes'] / 1e6:.1f} MB")
