"""The arguments and options that several commands take, described once."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import typer

DEFAULT_STORE = "store"
STORELESS = (
    "dependencies",
    "filter fineweb2",
    "new",
    "profile",
    "release push",
    "release sign",
    "release verify",
    "ui",
)
OF_PROFILE = ("doctor", "hosts", "plan", "run")  # commands whose first argument is a profile

ProfileName = Annotated[
    str,
    typer.Argument(
        help="a profile's name (smoke, tiny, finetune, gpu-24gb, gpu, gpu-8x, cluster), a recipe's (recipes/kto; "
        "`gristmill new` lists them) or a path to a YAML file"
    ),
]
LastProfile = Annotated[
    str | None, typer.Argument(help="a profile's name or a path to a YAML file; by default that of the last run")
]
StoreUrl = Annotated[
    str | None, typer.Option("--store", metavar="URL", help="a folder or an fsspec URL; sets runtime.store")
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="K=V", help="override a key: --set filter.toxicity.max_score=0.5")
]
Paranoid = Annotated[
    bool,
    typer.Option(
        "--paranoid",
        help="hash every artifact's files again, those in a bucket too, even if inode, size and times are the same",
    ),
]
LastStage = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="STAGE",
        help="end after this stage: download, dedup, filter, tokenizer, tokenize, pretrain, sft, dpo, evaluate, "
        "export, or another that the profile has",
    ),
]
Refreshed = Annotated[
    list[str] | None,
    typer.Option(
        "--refresh", metavar="STAGE", help="make this stage, or a part of one such as form, anew though it is there"
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="don't ask before a stage that runtime.approve names")]


class Scheduler(StrEnum):
    """What starts processes on many hosts."""

    SLURM = "slurm"
    KUBERNETES = "kubernetes"
    TORCHRUN = "torchrun"
    DEEPSPEED = "deepspeed"
    RAY = "ray"


def settings(overrides: list[str] | None, store: str | None) -> list[str]:
    """Overrides of a profile, of which `--store URL` is one: quoted, as a store may be called `on` or `5`."""
    return [*(overrides or []), *([f"runtime.store={json.dumps(store)}"] if store is not None else [])]


def store_of(overrides: list[str] | None, store: str | None) -> str:
    """The store that a command is for, before its profile is known."""
    named = [value for key, _, value in (one.partition("=") for one in overrides or []) if key == "runtime.store"]
    return store or (named[-1] if named else DEFAULT_STORE)


def at_store(url: str) -> str:
    """How a command names a store: nothing for the usual one."""
    return "" if url == DEFAULT_STORE else f" --store {shlex.quote(url)}"


def as_given(remedy: str, words: Sequence[str]) -> str:
    """The commands in a remedy, for the store and the profile of the command (`words`, as the shell gave them) that met
    the error."""
    store = store_of(_values("--set", words), "".join(_values("--store", words)[-1:]))
    profile = words[1] if len(words) > 1 and words[0] in OF_PROFILE and not words[1].startswith("-") else None

    def completed(found: re.Match[str]) -> str:
        command = found[1]
        if profile:
            command = re.sub(r"\bPROFILE\b", lambda _: shlex.quote(profile), command)
        if not command.startswith(STORELESS) and "--store" not in command:
            command += at_store(store)
        return f"`gristmill {command}`"

    return re.sub(r"`gristmill ([^`]+)`", completed, remedy)


def _values(option: str, words: Sequence[str]) -> list[str]:
    pairs = zip(words, [*words[1:], ""], strict=True)
    return [word.partition("=")[2] or after for word, after in pairs if word.partition("=")[0] == option]
