"""One stage: it and its inputs come from the store, or are made. `refresh` rebuilds the stage itself."""

from __future__ import annotations

from prefect import flow

from flows.deployed.parameters import ProfileName, Refresh, Settings, StageName
from flows.deployed.run_lifecycle import told
from flows.pages.names import name_of_run
from flows.pipeline import stages
from flows.session import start


@flow(name="stage", flow_run_name=name_of_run)
@told
def run_stage(
    name: StageName, profile: ProfileName = "tiny", overrides: Settings = (), refresh: Refresh = False
) -> str:
    """Bring one stage's artifact up to date. Its inputs come from the store, or are made."""
    with start(profile, overrides, name, [name] if refresh else ()) as chosen:
        return stages(chosen).location
