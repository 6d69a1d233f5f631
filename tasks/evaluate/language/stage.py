"""The stage `language_modelling`: how well one model predicts held-out text and the user's text files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from models.tokenizer import tokenizer_digest
from storage.artifact import Artifact
from storage.errors import ConfigError
from tasks.children.devices import check_device_here
from tasks.children.run_many import run_several
from tasks.children.spec import ChildSpec
from tasks.evaluate.language.config import LanguageConfig
from tasks.evaluate.language.files import check_files, fingerprints
from tasks.evaluate.language.report import write
from tasks.evaluate.language.retokenize import translate
from tasks.stage import stage
from tasks.stage.output import Output
from tasks.stage.runtime import Runtime
from tasks.training.held_out import has_questions, held_out_shards
from tasks.training.model_folder import check_shards, check_tokenizer


class LanguageSpec(ChildSpec):
    """The child's settings."""

    config: LanguageConfig
    model: Path
    tokenizer_digest: str
    shards: list[Path]


def check_here(config: LanguageConfig, runtime: Runtime) -> None:
    """Raises ConfigError for a missing GPU or file, SourceError for a file that can't be measured."""
    check_device_here(runtime)
    check_files(config)


Call = tuple[LanguageConfig, Sequence[Artifact | None], Output]


def _together(calls: Sequence[Call]) -> Iterator[int]:
    """Measures all models in one child, one after another."""
    work = []
    for config, (model, text, tokenizer), out in calls:
        assert model is not None
        work.append((_spec(config, model, text, tokenizer, out), out))

    def on_line(done: float, line: dict[str, Any]) -> None:
        calls[0][2].progress(done, len(calls), "models", line["note"])

    calls[0][2].progress(0, len(calls), "models", "starting")
    for number, result in run_several("tasks.evaluate.language.measure", work, on_line=on_line):
        write(result, calls[number][2])
        yield number


@stage(
    version=2,
    part_of="evaluate",
    section="evaluate",
    runtime=("compute",),
    sources=fingerprints,
    check_here=check_here,
    together=_together,
)
def language_modelling(
    config: LanguageConfig, model: Artifact, text: Artifact | None, tokenizer: Artifact | None, out: Output
) -> None:
    """Measure bits per byte on held-out `text` by source, by length and by position in the window, the calibration of
    the next-token distribution, and the perplexity of the profile's files as lm-evaluation-harness defines it.

    `text` holds token shards or benchmarks. Without it only the files are measured. `tokenizer` is that of the shards
    if it isn't the model's, and their documents are then encoded again. Benchmarks are encoded for each model. Writes
    language.json and language.md, calibration.png and positions.png, and documents.parquet with the loss of each
    document, for comparisons of models in pairs. Standard errors are over documents.
    """
    for _ in _together([(config, (model, text, tokenizer), out)]):
        pass


def _spec(
    config: LanguageConfig, model: Artifact, text: Artifact | None, tokenizer: Artifact | None, out: Output
) -> LanguageSpec:
    if text is None and not config.files:
        raise ConfigError("No text to measure was given.", "Give evaluate.language.files, or held-out documents.")
    digest = check_tokenizer(model.path)
    return LanguageSpec(
        config=config,
        runtime=out.runtime,
        model=model.path.resolve(),
        tokenizer_digest=digest,
        shards=_shards(text, tokenizer, model.path, digest, out) if text is not None else [],
        scratch=out.scratch.resolve(),
        out=out.path.resolve(),
    )


def _shards(text: Artifact, tokenizer: Artifact | None, model: Path, digest: str, out: Output) -> list[Path]:
    """Token shards of `text` for the model's tokenizer. Questions aren't encoded yet, whatever the `tokenizer`."""
    known = tokenizer_digest(tokenizer.path) if tokenizer is not None else digest
    if tokenizer is None or known == digest or has_questions(text):
        return held_out_shards(text, model, digest, out.scratch)
    out.progress(0, 1, "texts", "encoding for another tokenizer")
    return translate(check_shards(text, known), tokenizer.path, model, digest, out.scratch / "translated")
