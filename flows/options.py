"""Arguments and options shared by several commands."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import typer

from storage.errors import OF_MANY, REBUILD

DEFAULT_STORE = "store"
STORELESS = (
    "dependencies",
    "filter fineweb2",
    "new",
    "profile",
    "release push",
    "release sign",
    "release verify",
    "serve audit",
    "serve keys",
    "serve settings",
    "serve status",
    "serve swap",
    "ui",
)
OF_PROFILE = ("ablate", "doctor", "hosts", "mix", "plan", "run", "scaling")  # their first argument is a profile

ProfileName = Annotated[
    str,
    typer.Argument(
        help="a profile's name (smoke, tiny, finetune, continue, gpu-24gb, gpu, gpu-8x, cluster), a recipe's "
        "(recipes/kto; `gristmill new` lists them) or a path to a YAML file"
    ),
]
LastProfile = Annotated[
    str | None, typer.Argument(help="a profile's name or a path to a YAML file, by default the last run's")
]
StoreUrl = Annotated[
    str | None, typer.Option("--store", metavar="URL", help="a folder or an fsspec URL, overrides runtime.store")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="K=V", help="override a key, such as dedup.threshold=0.7 (repeatable)"),
]
Paranoid = Annotated[
    bool,
    typer.Option(
        "--paranoid",
        help="hash every artifact's files again, in a bucket too, even if inode, size and times are unchanged",
    ),
]
LastStage = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="STAGE",
        help="stop after this stage: download, dedup, filter, tokenizer, tokenize, pretrain, sft, dpo, evaluate, "
        "export, or another stage of the profile",
    ),
]
Refreshed = Annotated[
    list[str] | None,
    typer.Option(
        "--refresh",
        metavar="STAGE",
        help="rebuild this stage, or a part such as form, even if it is stored (repeatable)",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="don't ask before a stage that runtime.approve names")]


class Scheduler(StrEnum):
    """Launchers of processes on many hosts."""

    SLURM = "slurm"
    KUBERNETES = "kubernetes"
    TORCHRUN = "torchrun"
    DEEPSPEED = "deepspeed"
    RAY = "ray"


def settings(overrides: list[str] | None, store: str | None) -> list[str]:
    """Overrides of a profile, with `--store URL` as one of them: quoted, as a store may be called `on` or `5`."""
    return [*(overrides or []), *([f"runtime.store={json.dumps(store)}"] if store is not None else [])]


def store_of(overrides: list[str] | None, store: str | None) -> str:
    """A command's store, before its profile is known."""
    named = [value for key, _, value in (one.partition("=") for one in overrides or []) if key == "runtime.store"]
    return store or (named[-1] if named else DEFAULT_STORE)


def at_store(url: str) -> str:
    """The option that names a store in a command, or empty for the default store."""
    return "" if url == DEFAULT_STORE else f" --store {shlex.quote(url)}"


def as_given(remedy: str, words: Sequence[str]) -> str:
    """A remedy whose commands name the store and the profile of the failed command (`words`, from the shell). A matrix
    has damage that no run of its profile can mend."""
    if words and words[0] in OF_MANY and remedy.startswith(REBUILD):
        remedy = "`gristmill store verify` says how to mend it."
    store = store_of(_values("--set", words), "".join(_values("--store", words)[-1:]))
    profile = words[1] if len(words) > 1 and words[0] in OF_PROFILE and not words[1].startswith("-") else None

    def completed(match: re.Match[str]) -> str:
        command = match[1]
        if profile:
            command = re.sub(r"\bPROFILE\b", lambda _: shlex.quote(profile), command)
        if not command.startswith(STORELESS) and "--store" not in command:
            command += at_store(store)
        return f"`gristmill {command}`"

    return re.sub(r"`gristmill ([^`]+)`", completed, remedy)


def _values(option: str, words: Sequence[str]) -> list[str]:
    pairs = zip(words, [*words[1:], ""], strict=True)
    return [word.partition("=")[2] or after for word, after in pairs if word.partition("=")[0] == option]
