"""The stage `safety`: abuse, personal data, memorised text, refusals and bias of a model. Its child is generate.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from storage.artifact import Artifact
from storage.errors import ConfigError
from storage.shards.lines import read_json_lines, write_json_lines
from tasks.children.devices import check_device_here
from tasks.children.run_many import run_several
from tasks.children.spec import ChildSpec
from tasks.evaluate.safety.bias import measure_bias
from tasks.evaluate.safety.config import SafetyConfig
from tasks.evaluate.safety.questions import check_prompts, fingerprints, questions_of
from tasks.evaluate.safety.refusals import SECTION, measure_refusals
from tasks.evaluate.safety.report import write
from tasks.evaluate.safety.requests import BIAS, CONTINUATIONS, Requests, requests_of
from tasks.evaluate.safety.toxicity import measure_continuations
from tasks.evaluate.side_by_side.answers import load_answers
from tasks.stage import stage
from tasks.stage.output import Output
from tasks.stage.runtime import Runtime
from tasks.training.held_out import held_out_shards
from tasks.training.model_folder import check_shards, check_tokenizer

ASKED, SAID = "asked.jsonl", "said.jsonl"


class SafetySpec(ChildSpec):
    """The child's settings."""

    config: SafetyConfig
    model: Path


class _Work(NamedTuple):
    """One model: the requests to it, and the data to measure its answers by."""

    config: SafetyConfig
    spec: SafetySpec
    requests: Requests
    training: list[Path]
    digest: str
    classifier: Artifact | None
    answers: dict[str, Artifact]
    out: Output


def check_here(config: SafetyConfig, runtime: Runtime) -> None:
    """Raises ConfigError for a missing GPU, file or key, and SourceError for a line that isn't a prompt or a question,
    before the first stage of a run starts."""
    from tasks.endpoint.client import address_of, api_key

    check_device_here(runtime)
    fingerprints(config)
    if config.continuations:
        check_prompts(config.continuations)
    if config.bias:
        questions_of(config.bias)
    if config.refusals and config.refusals.judge:
        address_of(config.refusals.judge, SECTION)
        api_key(config.refusals.judge, SECTION)


Call = tuple[SafetyConfig, Sequence[Artifact | None], Output]


def _together(calls: Sequence[Call]) -> Iterator[int]:
    """Measures all models in one child, one after another."""
    work = [_work(config, inputs, out) for config, inputs, out in calls]
    first = calls[0][2]
    asking = [number for number, one in enumerate(work) if one.requests.rows]
    for number in range(len(work)):
        if number not in asking:  # only refusals, whose answers exist already
            _measure(work[number], {"facts": {}})
            yield number

    def on_line(done: float, line: dict[str, Any]) -> None:
        first.progress(done, len(asking), "models", line["note"])

    if asking:
        first.progress(0, len(asking), "models", "starting")
        specs = [(work[number].spec, work[number].out) for number in asking]
        module = "tasks.evaluate.safety.generate"
        for place, result in run_several(module, specs, on_line=on_line, keeps="answers"):
            _measure(work[asking[place]], result)
            yield asking[place]


@stage(
    version=7,
    part_of="evaluate",
    runtime=("compute", "data", "endpoint"),
    sources=fingerprints,
    check_here=check_here,
    together=_together,
)
def safety(
    config: SafetyConfig,
    model: Artifact,
    held_out: Artifact,
    training: Artifact | None,
    classifier: Artifact | None,
    harmful: Artifact | None,
    harmless: Artifact | None,
    out: Output,
) -> None:
    """Measure one model: toxicity of continuations and personal data in them, verbatim memorisation, refusals, bias.

    `held_out` and `training` hold token shards of the model's tokenizer, `held_out` also benchmarks. `classifier` is
    the filter's model of toxicity. `harmful` and `harmless` are this model's answers to the prompts of the two sets.
    Writes safety.json and safety.md, items/ with a line per prompt of each part, and texts/ with the model's texts, in
    continuations with placeholders for personal data. Intervals are at 95 %.
    """
    inputs = (model, held_out, training, classifier, harmful, harmless)
    for _ in _together([(config, inputs, out)]):
        pass


def _work(config: SafetyConfig, inputs: Sequence[Artifact | None], out: Output) -> _Work:
    model, held_out, training, classifier, harmful, harmless = inputs
    assert model is not None
    assert held_out is not None
    if config.continuations and (config.toxicity is None or config.pii is None or classifier is None):
        raise ConfigError(
            "evaluate.safety.continuations lacks a toxicity classifier.",
            "Set evaluate.safety.toxicity or filter.toxicity, or evaluate.safety.continuations to null.",
        )
    digest = check_tokenizer(model.path)
    reads_held_out = config.memorisation or (
        config.continuations and not config.continuations.prompts and config.continuations.file is None
    )
    held_out_paths = held_out_shards(held_out, model.path, digest, out.scratch) if reads_held_out else []
    training_paths = check_shards(training, digest) if training is not None and config.memorisation else []
    requests = requests_of(config, held_out_paths, training_paths, digest)
    write_json_lines(out.scratch / ASKED, requests.rows)
    spec = SafetySpec(
        config=config,
        runtime=out.runtime,
        model=model.path.resolve(),
        scratch=out.scratch.resolve(),
        out=out.path.resolve(),
    )
    answers = {name: one for name, one in (("harmful", harmful), ("harmless", harmless)) if one is not None}
    return _Work(config, spec, requests, training_paths, digest, classifier, answers, out)


def _measure(work: _Work, result: dict[str, Any]) -> None:
    """Measure the child's texts, and write the results."""
    config, out = work.config, work.out
    said = [*read_json_lines(work.spec.scratch / SAID)] if work.requests.rows else []
    found: dict[str, Any] = {}
    items: dict[str, list[dict[str, Any]]] = {}
    texts: dict[str, list[dict[str, Any]]] = {}
    if config.continuations:
        assert work.classifier is not None
        mine = [row for row in said if row["part"] == CONTINUATIONS]
        measured = measure_continuations(config, work.classifier.path, mine)
        found["continuations"], items["continuations"], texts["continuations"] = measured
    if config.memorisation:
        from tasks.evaluate.safety.memorisation import measure_memorisation  # numba, which reading a profile avoids

        found["memorisation"], splits = measure_memorisation(
            config, work.requests, said, work.training, work.digest, out
        )
        items |= {f"memorisation-{split}": rows for split, rows in splits.items() if rows}
    if config.refusals:
        answers = {name: load_answers(artifact) for name, artifact in work.answers.items()}
        found["refusals"], refused, shown = measure_refusals(config.refusals, answers, config.seed, out)
        items |= {f"refusals-{name}": rows for name, rows in refused.items() if rows}
        texts |= {f"refusals-{name}": rows for name, rows in shown.items()}
    if config.bias:
        mine = [row for row in said if row["part"] == BIAS]
        found["bias"], items["bias"] = measure_bias(config, work.requests.questions, mine)
    write(config, found, items, texts, out)
    out.fact(**result["facts"])
