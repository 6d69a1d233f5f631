"""The pipeline as a Prefect flow: every stage of the diagram."""

from __future__ import annotations

from prefect import flow

from flows.deployed.ends import told
from flows.deployed.form import LastStage, ProfileName, Refreshed, Settings
from flows.diagram.stages import stages
from flows.pages.names import name_of_run
from flows.session import start


@flow(flow_run_name=name_of_run)
@told
def pipeline(
    profile: ProfileName = "tiny", overrides: Settings = (), to: LastStage = None, refresh: Refreshed = ()
) -> str:
    """Raw text to release. `overrides` are `section.key=value`; `to` ends early; `refresh` makes stages anew."""
    with start(profile, overrides, to, refresh) as chosen:
        return stages(chosen).location
