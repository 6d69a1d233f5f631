"""One stage again: its ancestors come from the store, the stage itself too, or anew with `refresh`."""

from __future__ import annotations

from prefect import flow

from flows.pages.names import name_of_run
from flows.pipeline import stages
from flows.session import Settings, Word, start


@flow(name="stage", flow_run_name=name_of_run)
def run_stage(name: Word, profile: Word = "tiny", overrides: Settings | None = None, refresh: bool = False) -> str:
    """Bring one stage's artifact up to date. What it needs is taken from the store, or made."""
    with start(profile, overrides or (), name, [name] if refresh else ()) as chosen:
        return stages(chosen).location
