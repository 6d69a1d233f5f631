"""The pipeline as Prefect flows: all of it, or up to one stage."""

from __future__ import annotations

from prefect import flow

from flows.deployed.parameters import LastStage, ProfileName, Refresh, Refreshed, Settings, StageName
from flows.deployed.run_lifecycle import told
from flows.pages.names import name_of_run
from flows.pipeline import stages
from flows.session import start


@flow(name="pipeline", flow_run_name=name_of_run)
@told
def pipeline(
    profile: ProfileName = "tiny", overrides: Settings = (), to: LastStage = None, refresh: Refreshed = ()
) -> str:
    """Raw text to release. `overrides` are `section.key=value`, `to` is the last stage to run, and `refresh` names
    stages to rebuild even if they are stored."""
    with start(profile, overrides, to, refresh) as chosen:
        return stages(chosen).location


@flow(name="stage", flow_run_name=name_of_run)
@told
def run_stage(
    name: StageName, profile: ProfileName = "tiny", overrides: Settings = (), refresh: Refresh = False
) -> str:
    """Bring one stage's artifact up to date. What it needs is taken from the store, or made."""
    with start(profile, overrides, name, [name] if refresh else ()) as chosen:
        return stages(chosen).location
