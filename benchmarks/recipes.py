"""`python -m benchmarks.recipes kto quality`: runs recipes, and prints a row of docs/recipes.md for each.

All share a store, in which the profiles that they extend have been run first: a row's time is the CPU time of the
stages that the recipe makes beyond its base. Recipes that change only the runtime have a store of their own. Files that
a recipe names are made of the embedded corpus. `--folder` keeps stores and logs, and a later call goes on with them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from profiles.load import RECIPES, load, purpose, recipes, text_of
from storage import refs
from storage.store import Store
from storage.units import duration
from tasks.download.config import EmbeddedSource
from tasks.download.sources import embedded
from tasks.text.packages import package_file, required_packages
from tests.s3_server import client_of, s3_server

BUCKET = "my-bucket"
SALT = "GRISTMILL_SALT"
BASES = {"smoke": None, "tiny": "filter", "finetune": "base"}  # how far each is run before its recipes
APART = ("bucket", "dask")  # these would find all in the store
GERMAN = 15  # sentences of a page
LOSS = "loss of held-out pairs {initial_validation_loss:.3f} → {validation_loss:.3f}"
PRETRAINED = "held-out loss {validation_loss:.2f}, {validation_bits_per_byte:.2f} bits a byte"
# By recipe: the stage that the figure is of, and what is said of its counts
FIGURES = {
    "bits": ("evaluate", "{summary}"),
    "code": ("filter", "{documents[kept]} of {documents[in]} files kept"),
    "curve": (
        "evaluate",
        "bits a byte after 10, 20 and 30 steps: {scores[base@10][bits_per_byte]:.2f}, "
        "{scores[base@20][bits_per_byte]:.2f}, {scores[base][bits_per_byte]:.2f}",
    ),
    "dask": ("tokenize", "{documents[kept]} documents, {train[tokens]:,} tokens"),
    "documents-apart": ("pretrain", PRETRAINED),
    "draft": ("draft", "a draft of {summary}"),
    "feedback": ("feedback", "{summary}"),
    "gates": ("evaluate", "{summary}"),
    "german": ("filter", "{documents[kept]} of {documents[in]} pages kept; {documents[removed][language]} not German"),
    "grpo": ("grpo", "right answers to held-out sums {initial_validation_reward:.0%} → {validation_reward:.0%}"),
    "judge": ("evaluate", "dpo against sft {tables[Side by side][1][win rate against sft]}"),
    "kto": ("kto", LOSS),
    "lora": ("sft", LOSS),
    "mixture": ("pretrain", PRETRAINED),
    "nightly": ("dedup", "{documents[removed][exact_duplicate]} of {documents[in]} documents known"),
    "onnx": ("export", "{summary}"),
    "orpo": ("orpo", LOSS),
    "own-text": ("pretrain", PRETRAINED),
    "perplexity": ("filter", "{documents[removed][perplexity.max_percentile]} of {documents[in]} removed by it"),
    "ppo": ("ppo", "reward of answers to held-out prompts {initial_validation_reward:.3f} → {validation_reward:.3f}"),
    "quality": ("filter", "{documents[removed][quality.min_score]} removed by it, {documents[kept]:,} kept"),
    "safety": ("evaluate", "expected maximum toxicity of dpo {tables[Safety][0][dpo]}"),
    "semantic": ("filter", "{documents[removed][semantic.max_similarity]} of {documents[in]:,} removed by it"),
    "shard": ("pretrain", PRETRAINED),
    "shrink": ("prune", "{summary}"),
    "simpo": ("cpo", LOSS),
    "spans": ("dedup", "{words_cut:,} words and {sentences_cut:,} sentences cut, {documents[kept]:,} documents kept"),
    "surrogates": ("filter", "{changed[pii]} of {documents[kept]:,} documents changed"),
    "vllm": ("export", "{summary}"),
    "vote": ("answers", "of each model {summary}"),
}


def main() -> None:
    """Run, print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="recipes (default: all)")
    parser.add_argument("--folder", type=Path, help="where stores and logs stay")
    parser.add_argument("--made", action="store_true", help="run nothing: rows of what an earlier call made")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as passing:
        folder = (asked.folder or Path(passing)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        write_inputs(folder)
        for name in asked.names or [one.removeprefix(RECIPES) for one in recipes()]:
            base = base_of(name)
            if name not in APART and not asked.made and not (folder / f"{base}.log").exists():
                run(folder, of_base(base), base)
                print(f"| `{base}` | {duration(cpu_seconds(folder, base, base))} |", flush=True)
            told = " | ".join([purpose(RECIPES + name), f"`{base}`", *cooked(folder, name, made=asked.made)])
            print(f"| [`{name}`](../profiles/recipes/{name}.yaml) | {told} |", flush=True)


def cooked(folder: Path, name: str, made: bool = False) -> tuple[str, str]:
    """Runs a recipe, unless it was `made` earlier; its time and its figure."""
    with served(name) as variables:
        for command in [] if made else commands(name):
            run(folder, command, name, variables)
        return duration(cpu_seconds(folder, name, "" if name in APART else base_of(name))), figure(folder, name)


def cpu_seconds(folder: Path, name: str, base: str) -> float:
    """The CPU time of the stages of a profile, but for those that another one, `base`, made."""
    store = Store(store_of(folder, name))
    stages = load(name if name == base else RECIPES + name).stage_names
    found = [ref for ref in (f"{name}/{stage}" for stage in stages) if refs.history(store, ref)]
    earlier = [ref for ref in refs.names(store) if name != base and ref.startswith(f"{base}/")]
    old = {entry.location for ref in earlier for entry in refs.history(store, ref)}
    made = [store.manifest(location) for location in {refs.resolve(store, ref) for ref in found} - old]
    return float(sum(manifest.facts["cpu_seconds"] for manifest in made if manifest))


def base_of(name: str) -> str:
    """The profile that a recipe extends."""
    return str(yaml.safe_load(text_of(RECIPES + name))["extends"])


def of_base(base: str) -> list[str]:
    """The run of a profile before that of its recipes, without `gristmill`."""
    to = BASES[base]
    return ["run", base, *(["--to", to] if to else [])]


def commands(name: str) -> list[list[str]]:
    """The runs in the comments at the head of a recipe, without `gristmill`."""
    found = re.findall(r"^# {5}.*?gristmill (run .*)$", text_of(RECIPES + name), re.M)
    return [shlex.split(line) for line in found]


def store_of(folder: Path, name: str) -> str:
    """Where a recipe is run."""
    if name == "bucket":
        return load(RECIPES + name).runtime.store
    return str(folder / (f"store-{name}" if name in APART else "store"))


def run(folder: Path, command: list[str], name: str, variables: Mapping[str, str] | None = None) -> None:
    """A command of `gristmill`; what it says is in a log. Raises CalledProcessError where it fails."""
    settings = ["--set", "runtime.training.side_by_side=true"]  # another checkout's training is not waited for
    where = [*settings, *([] if name == "bucket" else ["--store", store_of(folder, name)])]
    with (folder / f"{name}.log").open("w") as log:
        subprocess.run(
            [sys.executable, "-m", "flows.cli", *command, *where], cwd=folder, check=True, stdout=log, stderr=log,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), SALT: "a salt of benchmarks",
                 **(variables or {})},
        )  # fmt: skip


@contextmanager
def served(name: str) -> Iterator[dict[str, str]]:
    """For the recipe `bucket` a bucket on this machine, and the variables by which a client finds it."""
    if name != "bucket":
        yield {}
        return
    import s3fs

    with s3_server() as address:
        variables = client_of(address)
        os.environ |= variables
        s3fs.S3FileSystem().mkdir(BUCKET)
        yield variables


def figure(folder: Path, name: str) -> str:
    """What the run of a recipe came to, by the counts of one stage."""
    if name == "bucket":
        (told,) = re.findall(r"^Bucket: (.*)\.$", (folder / "bucket.log").read_text(), re.M)
        return str(told)
    stage, said = FIGURES[name]
    store = Store(store_of(folder, name))
    manifest = store.manifest(refs.resolve(store, f"{name}/{stage}"))
    assert manifest is not None
    return said.format(**manifest.counts)


def write_inputs(folder: Path) -> None:
    """Every file that a recipe names, made of the embedded corpus: real text, and the same in each run."""
    texts = {corpus: documents(corpus) for corpus in ("speeches", "encyclopedia", "packages")}
    english = [text for source, text in texts["encyclopedia"] if source == "encyclopedia-en"]
    foreign = [text for source, text in texts["encyclopedia"] if source != "encyclopedia-en"]
    source = EmbeddedSource(kind="embedded", answer_words=20)
    (folder / "my-texts").mkdir(exist_ok=True)
    for number, (_, text) in enumerate(texts["speeches"]):
        (folder / "my-texts" / f"{number:03}.txt").write_text(text, encoding="utf-8")
    write(folder / "my-answers" / "answers.jsonl", rows_of_instructions(source, 64))
    write(folder / "my-pages" / "pages.jsonl", [{"text": text} for text in [*german(), *foreign[:50], *english[:50]]])
    write(folder / "my-code" / "code.jsonl", code())
    good, bad = ([{"text": text, "label": label} for text in some[:150]]
                 for some, label in ((english, "yes"), ([text for _, text in texts["packages"]], "no")))  # fmt: skip
    write(folder / "my-labels.jsonl", [*good, *bad])
    write(folder / "my-ratings.jsonl", ratings(source))
    write(folder / "my-sums.jsonl", sums())
    write(folder / "my-news" / "2026-11-25.jsonl", [{"text": text} for text in english[:400]])


def write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """A row a line."""
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def documents(corpus: str) -> list[tuple[str, str]]:
    """Source and text of some documents of the embedded corpus."""
    source = EmbeddedSource.model_validate({"kind": "embedded", "corpora": [corpus], "limit": 400})
    return [(document.source, document.text) for document in embedded.documents(source)]


def german() -> list[str]:
    """Pages of German small talk."""
    said = [
        str(turn)
        for path in sorted(package_file("chatterbot-corpus", "chatterbot_corpus/data/german").glob("*.yml"))
        for talk in yaml.safe_load(path.read_text(encoding="utf-8"))["conversations"]
        for turn in talk
    ]
    ended = [turn if turn[-1] in ".!?" else f"{turn}." for turn in said if turn]
    return [" ".join(ended[at : at + GERMAN]) for at in range(0, len(ended), GERMAN)]


def code() -> list[dict[str, str]]:
    """The modules of some installed packages, with their paths."""
    files = [
        path
        for package in required_packages()
        if package.name in ("pyyaml", "rich", "typer", "pydantic", "jinja2")
        for path in package.distribution.files or ()
        if path.suffix == ".py"
    ]
    return [{"text": file.read_text(encoding="utf-8"), "path": str(file)} for file in sorted(files)]


def rows_of_instructions(source: EmbeddedSource, limit: int) -> list[dict[str, str]]:
    """Questions about an encyclopedia with their answers."""
    talks: list[Any] = [row["messages"] for row in embedded.instructions(source) if row["source"] != "small-talk"]
    return [{"prompt": talk[0]["content"], "completion": talk[1]["content"]} for talk in talks[:limit]]


def ratings(source: EmbeddedSource) -> Iterator[dict[str, Any]]:
    """Answers with a thumb up or down: those of preferences, one by one."""
    pairs: list[Any] = [*embedded.preferences(source)][:100]
    for pair in pairs:
        for label, said in ((True, pair["chosen"]), (False, pair["rejected"])):
            yield {"prompt": pair["prompt"][0]["content"], "completion": said[0]["content"], "label": label}


def sums() -> list[dict[str, str]]:
    """Questions with one right answer: a + b for all a and b below 10, asked in four ways."""
    return [
        {"prompt": question.format(a, b), "completion": str(a + b)}
        for question in ("{}+{}", "{} plus {}", "add {} and {}", "sum of {} and {}")
        for a in range(10)
        for b in range(10)
    ]


if __name__ == "__main__":
    main()
