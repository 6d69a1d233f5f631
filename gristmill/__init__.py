"""Gristmill from Python: clean text, train a tokenizer, plan and run a profile, read a store.

    import gristmill as gm
    kept, removed = gm.dedup(texts, threshold=0.8)
    gm.filter("corpus/", "clean/", preset="fineweb")
    tokenizer = gm.train_tokenizer("clean/", vocab_size=32_000)
    run = gm.run("tiny", {"pretrain.steps": 100}, to="pretrain")
    gm.store("store")["tiny/filter"].documents()

`dedup`, `filter` and `train_tokenizer` work on plain folders and lists, without Prefect and without a store. `plan` and
`run` do what the commands of these names do. Every error that a user can act on is a `GristmillError`, with a `message`
and a `remedy`. The page docs/from-python.md shows all of it.

texts.py      dedup and filter
tokens.py     train_tokenizer and load_tokenizer
pipeline.py   plan and run
stored.py     a store and its artifacts, as tables
folders.py    what these functions read, and how a stage runs on a plain folder
settings.py   profiles, overrides and sections of a profile as Python values

Importing this module loads none of the libraries that do the work: each function loads its own.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from storage.errors import GristmillError

if TYPE_CHECKING:
    from gristmill.pipeline import Plan, PlannedStage, Run, plan, run
    from gristmill.stored import Artifact, Store, store
    from gristmill.texts import Deduplicated, Filtered, Removed, dedup, filter
    from gristmill.tokens import Tokenizer, load_tokenizer, train_tokenizer

__all__ = [
    "Artifact",
    "Deduplicated",
    "Filtered",
    "GristmillError",
    "Plan",
    "PlannedStage",
    "Removed",
    "Run",
    "Store",
    "Tokenizer",
    "dedup",
    "filter",
    "load_tokenizer",
    "plan",
    "run",
    "store",
    "train_tokenizer",
]

_MODULES = {
    "gristmill.pipeline": ("Plan", "PlannedStage", "Run", "plan", "run"),
    "gristmill.stored": ("Artifact", "Store", "store"),
    "gristmill.texts": ("Deduplicated", "Filtered", "Removed", "dedup", "filter"),
    "gristmill.tokens": ("Tokenizer", "load_tokenizer", "train_tokenizer"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a function or a class with its module when it is first asked for."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    return found


def __dir__() -> list[str]:
    return __all__
