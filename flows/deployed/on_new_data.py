"""The pipeline when its sources have changed: a light flow for a frequent schedule.

The flow plans, which digests the sources, and ends as *Unchanged* if every stage is in the store. Only the store
remembers what was seen before, so the next scheduled run retries one that failed.
"""

from __future__ import annotations

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows.deployed.parameters import LastStage, ProfileName, Settings
from flows.deployed.run_lifecycle import told
from flows.pages.names import name_as
from flows.pipeline import stages
from flows.plan import plan
from flows.session import start
from tasks.stage.session import current


@flow(flow_run_name=name_as("{profile}: on new data"))
@told
def on_new_data(profile: ProfileName = "tiny", overrides: Settings = (), to: LastStage = None) -> str | State[None]:
    """Run the pipeline if it would make anything: if sources, settings or code changed since the last run."""
    with start(profile, overrides, to, ()) as chosen:
        if all(line.hit for line in plan(chosen, current())):
            return Completed(name="Unchanged", message="The store has every stage, made from the present sources.")
        return stages(chosen).location
