"""The extras of the installation: their modules, the stages that need them, and the error for a missing one.

Cleaning text needs none of them. A run checks them before its first stage (`flows/session.py`). Parts of the filter
that need a model check them with their other needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec

from storage.errors import ConfigError
from tasks.training.chain import LINKS

# The modules that show that an extra is installed. Formats of export check the modules that only they need
MODULES: Mapping[str, tuple[str, ...]] = {
    "models": ("torch", "transformers", "safetensors", "peft", "accelerate", "gguf"),
    "train": ("torch", "transformers", "peft", "accelerate", "deepspeed", "trl", "bitsandbytes"),
    "eval": ("torch", "transformers", "lm_eval", "langdetect", "nltk", "immutabledict", "xllamacpp"),
    "export": ("torch", "transformers", "safetensors", "gguf", "xllamacpp", "bitsandbytes"),
    "serve": ("torch", "transformers", "gguf", "xllamacpp"),
    "lingua": ("lingua",),
    "dumps": ("mwparserfromhell", "py7zr"),
    "report": ("vl_convert",),
    "web": ("fastwarc", "resiliparse", "trafilatura"),
    "documents": ("pypdfium2", "lxml", "resiliparse", "trafilatura"),
}
NEEDS: Mapping[str, str] = {
    **dict.fromkeys(("pretrain", *LINKS, "draft"), "train"),
    "base": "models",
    "evaluate": "eval",
    "export": "export",
}  # by stage; those of the data half need none


def lacking(extra: str) -> list[str]:
    """The modules of an extra that are not installed."""
    return [name for name in MODULES[extra] if find_spec(name) is None]


def need(extra: str, what: str) -> None:
    """Raises ConfigError, with the command that installs the extra, if `what` needs it and it isn't installed."""
    if missing := lacking(extra):
        raise ConfigError(
            f"{what} needs the extra {extra}, which lacks {', '.join(missing)} here.",
            f"Install it: {install(extra)}",
            extras=[extra],
        )


def missing_extras(stages: Iterable[str]) -> dict[str, list[str]]:
    """The extras that these stages need and this installation lacks, each with the stages that need it."""
    found: dict[str, list[str]] = {}
    for name in stages:
        if name in NEEDS and lacking(NEEDS[name]):
            found.setdefault(NEEDS[name], []).append(name)
    return found


def told_of_extras(stages: Iterable[str]) -> Iterator[str]:
    """A sentence for a plan on the extras that a run on this machine would need first. Nothing if it has them."""
    if found := missing_extras(stages):
        yield f"{_named(found)}: {install(*found)}"


def check_extras(stages: Iterable[str]) -> None:
    """Raises ConfigError, with one command, if stages of a run need extras that are not installed."""
    if found := missing_extras(stages):
        raise ConfigError(f"{_named(found)}.", f"Install: {install(*found)}", extras=[*found])


def install(*extras: str) -> str:
    """The command that installs extras."""
    return f"pip install 'gristmill[{','.join(extras)}]'"


def _named(found: Mapping[str, list[str]]) -> str:
    each = (f"{extra} (for {', '.join(names)})" for extra, names in found.items())
    return f"Extras not installed here: {', '.join(each)}"
