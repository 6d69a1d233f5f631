"""What the benchmarks over seeds share: options, stages in folders of their own, means with their interval."""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure import DATA
from storage.artifact import Artifact
from storage.errors import BadDocument
from storage.refs import resolve
from storage.shards.lines import read_json_lines
from storage.store import Store
from tasks.download.pairs import preference
from tasks.download.pairs.form import FormName
from tasks.posttrain.methods.sft import SftConfig, sft
from tasks.posttrain.rows.prepare import is_held_out
from tasks.stage.output import Output
from tasks.stage.runtime import Runtime


def parser_of(name: str, about: str | None) -> argparse.ArgumentParser:
    """Options of every benchmark here."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.posttrain.{name}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=3, help="at least two, for an interval")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=DATA / name, help="what is in it is not made again")
    return parser


def add_store(parser: argparse.ArgumentParser) -> None:
    """Where the models and the pairs of `tiny` are."""
    parser.add_argument("--store", default="store", help="of `make run`, which has the models and the pairs of tiny")


def of_tiny(store: str, stage: str, part: str) -> Artifact:
    """A part of what a stage left in the newest run of the profile tiny."""
    there = Store(store)
    return there.get(resolve(there, f"tiny/{stage}")).part(part)


def runtime_of(threads: int, **posttrain: Any) -> Runtime:
    """On the CPU, without checkpoints."""
    compute, training = {"threads": threads, "device": "cpu"}, {"checkpoint_every": 100_000}
    return Runtime.model_validate({"compute": compute, "training": training, "posttrain": posttrain})


def made(folder: Path, runtime: Runtime, make: Callable[[Output], None]) -> Output:
    """A stage's output in a folder; made once, its counts and facts kept beside it."""
    out, done = Output.at(folder, stage=folder.name, runtime=runtime), folder / "counts.json"
    if not done.exists():
        make(out)
        done.write_text(json.dumps({"counts": out.counts, "facts": out.facts}))
    kept = json.loads(done.read_text())
    out.counts, out.facts = kept["counts"], kept["facts"]
    return out


def tuned(folder: Path, runtime: Runtime, config: SftConfig, model: Artifact, rows: Artifact) -> Output:
    """What `sft` leaves."""
    return made(folder, runtime, lambda out: sft.function(config, model, rows, out))


def model_of(out: Output) -> Artifact:
    """The model that a stage left."""
    return Artifact.at(out.path / "model")


def rows_of(artifact: Artifact) -> list[dict[str, Any]]:
    """All rows of an artifact's JSON Lines."""
    return [row for path in artifact.files("*.jsonl") for row in read_json_lines(path)]


def right_share(model: Artifact, rows: Artifact, share: float, longest: int) -> float:
    """The share of right greedy answers, of at most `longest` tokens, to the rows that a share holds out."""
    from models.conversation import answer_text
    from models.pretrained import load_pretrained
    from models.runtimes.greedy import ends_of, greedy
    from models.tokenizer import load_tokenizer

    loaded, tokenizer = load_pretrained(model.path), load_tokenizer(model.path)
    asked, ends = [row for row in rows_of(rows) if is_held_out(row["id"], share)], ends_of(loaded, tokenizer)
    answers = greedy(loaded, tokenizer, [row["messages"][:-1] for row in asked], ends, longest)
    texts = [answer_text(tokenizer, ids, ends) for ids in answers]
    right = [text == row["messages"][-1]["content"] for text, row in zip(texts, asked, strict=True)]
    return float(sum(right) / len(right))


def read_preferences(path: Path, folder: Path, form: FormName | None) -> Artifact:
    """The rows of a JSON Lines file of pairs, in a form that `download` knows; what it would quarantine is left out."""
    folder.mkdir(parents=True, exist_ok=True)
    with path.open() as lines, (folder / "all.jsonl").open("w") as written:
        for line in lines:
            with contextlib.suppress(BadDocument):
                written.write(json.dumps(preference(json.loads(line), path.stem, form).pair) + "\n")
    return Artifact.at(folder)


def mean_interval(values: list[float]) -> tuple[float, float, float]:
    """The mean over seeds, and the ends of its 95 % interval (Student's t)."""
    from scipy.stats import t

    mean = statistics.mean(values)
    half = float(t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / len(values) ** 0.5
    return mean, mean - half, mean + half


def print_mean(what: str, values: list[float], form: str) -> None:
    """A line with the mean over seeds and its interval."""
    mean, low, high = mean_interval(values)
    print(f"\n{what} {mean:{form}}, 95 % interval {low:{form}} to {high:{form}}")
