"""Opening a run: the profile read, the store opened, the watcher chosen. The same for every flow."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace

from profiles.load import load
from profiles.schema import STAGE_NAMES, Profile
from storage.errors import ConfigError
from storage.store import Store
from tasks.stage.decorator import STAGES
from tasks.stage.progress import Observer
from tasks.stage.session import Session, open_session

# The command line puts a terminal here; a worker has nobody but Prefect's log.
watcher: ContextVar[Observer | None] = ContextVar("gristmill_watcher", default=None)


@contextmanager
def start(profile: str, overrides: Sequence[str], until: str | None, refresh: Collection[str]) -> Iterator[Profile]:
    """Open the session that a flow's stages run in. Raises ConfigError for a wrong profile or stage name."""
    from flows.progress import PrefectObserver

    chosen = load(profile, overrides)
    observer = watcher.get() or PrefectObserver()
    with open_session(replace(session_of(chosen, until, refresh), observer=observer)):
        yield chosen


def session_of(profile: Profile, until: str | None = None, refresh: Collection[str] = ()) -> Session:
    """The session of a profile. Raises ConfigError for an unknown stage."""
    for name in [*refresh, *([until] if until else [])]:
        if name not in STAGES:
            nearest = difflib.get_close_matches(name, STAGES, 1)
            hint = f"Did you mean {nearest[0]}?" if nearest else f"The stages are {', '.join(STAGE_NAMES)}."
            raise ConfigError(f"There is no stage {name}.", hint)
    return Session(Store(profile.runtime.store), profile.runtime, profile.name, frozenset(refresh), Observer(), until)
