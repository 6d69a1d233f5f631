"""Automations of `gristmill ui`'s server: dead runs become *Crashed*, and failures are notified.

A worker sees at once that one of its runs is dead. Nobody watches a run that was started at a terminal, whose page
would say *Running* for ever. So each run sends Prefect's heartbeat, and one that falls silent becomes *Crashed*.
Somebody's changes of an automation stay, and one that is switched off stays off.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from flows.deployed.suspended import WAITS
from flows.server import patient_client
from storage.errors import ConfigError, ServerError

HEARTBEAT = "PREFECT_FLOWS_HEARTBEAT_FREQUENCY"
HEARTBEAT_SECONDS = 30
SILENT_SECONDS = 4 * HEARTBEAT_SECONDS  # more than three beats, or a busy machine's runs would seem dead
GONE = "gristmill: runs that are gone"
TELL = "gristmill: tell of failures"
FLOWS = ("pipeline", "stage", "on-new-data", "evaluate-ref", "export-ref", "promote")
# After these a run is silent or waits
QUIET = ("Completed", "Unchanged", "Failed", "TimedOut", "Cancelled", "Crashed", "Paused", "Suspended")
BEAT = "prefect.flow-run.heartbeat"
OF_RUNS = {"prefect.resource.id": ["prefect.flow-run.*"]}


def automate(environment: Mapping[str, str], notify: str | None) -> None:
    """Create the automations that the server lacks. `notify` is a notification block for failures, TYPE/NAME.

    Raises ConfigError for an unknown block, ServerError.
    """
    try:
        with patient_client(environment) as client:
            wanted = [_gone()]
            if notify is not None:
                wanted.append(_tell(_block(client, notify)))
            for automation in wanted:
                _create(client, automation)
    except httpx.HTTPError as error:
        raise ServerError(f"The Prefect server rejected an automation: {error}.", "Restart it.") from None


def _create(client: httpx.Client, automation: dict[str, Any]) -> None:
    named = {"automations": {"name": {"any_": [automation["name"]]}}}
    registered = client.post("/automations/filter", json=named).raise_for_status().json()
    if registered and _effect(registered[0]) == _effect(automation):
        return
    for old in registered:
        client.delete(f"/automations/{old['id']}").raise_for_status()
    client.post("/automations/", json=automation).raise_for_status()


def _effect(automation: Mapping[str, Any]) -> tuple[Any, ...]:
    """The parts of an automation that are ours. Its waiting time, and whether it is on, belong to the server's user."""
    return automation["actions"], sorted(automation["trigger"]["expect"])


def _gone() -> dict[str, Any]:
    return {
        "name": GONE,
        "description": f"A run that was silent for {SILENT_SECONDS} seconds was killed: it becomes Crashed.",
        "trigger": {
            "type": "event",
            "posture": "Proactive",
            "match": OF_RUNS,
            "for_each": ["prefect.resource.id"],
            "after": [BEAT],
            "expect": [BEAT, WAITS, *(f"prefect.flow-run.{state}" for state in QUIET)],
            "threshold": 1,
            "within": SILENT_SECONDS,
        },
        "actions": [
            {
                "type": "change-flow-run-state",
                "name": "Crashed",
                "state": "CRASHED",
                "message": f"Silent for {SILENT_SECONDS} seconds, so its process is gone. Run it again: finished "
                "stages come from the store.",
                "force": False,
            }
        ],
    }


def _tell(block: str) -> dict[str, Any]:
    return {
        "name": TELL,
        "description": "Notifies a block of runs that fail or crash: gristmill ui --notify.",
        "trigger": {
            "type": "event",
            "posture": "Reactive",
            "match": OF_RUNS,
            "match_related": {"prefect.resource.role": "flow", "prefect.resource.name": list(FLOWS)},
            "expect": [f"prefect.flow-run.{state}" for state in ("Failed", "TimedOut", "Crashed")],
            "threshold": 1,
            "within": 0,
        },
        "actions": [
            {
                "type": "send-notification",
                "block_document_id": block,
                "subject": "{{ flow_run.name }}: {{ flow_run.state.name }}",
                "body": "{{ flow_run.state.message }}\n{{ flow_run|ui_url }}",
            }
        ],
    }


def _block(client: httpx.Client, notify: str) -> str:
    kind, _, name = notify.partition("/")
    answer = client.get(f"/block_types/slug/{kind}/block_documents/name/{name}")
    if answer.status_code == httpx.codes.NOT_FOUND:
        raise ConfigError(
            f"The Prefect server has no block {notify}.",
            "Create it under Blocks in the UI, and name it TYPE/NAME, such as slack-webhook/team.",
        )
    return str(answer.raise_for_status().json()["id"])
