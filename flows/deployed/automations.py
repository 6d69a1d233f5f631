"""Automations of `gristmill ui`'s server: a run that is gone is *Crashed*, and somebody is told of failures.

A worker sees at once that a run of its own is gone. One that was started at a terminal has nobody who looks after it;
its page would say *Running* for ever. So each run beats (Prefect's heartbeat), and one that falls silent is crashed.
What somebody has changed of an automation stays, and one that is switched off stays off.
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
SILENT_SECONDS = 4 * HEARTBEAT_SECONDS  # more than three beats, else a busy machine's runs are crashed
GONE = "gristmill: runs that are gone"
TELL = "gristmill: tell of failures"
FLOWS = ("pipeline", "stage", "on-new-data", "evaluate-ref", "export-ref", "promote")
# A run that has got to one of these says no more, or waits
QUIET = ("Completed", "Unchanged", "Failed", "TimedOut", "Cancelled", "Crashed", "Paused", "Suspended")
BEAT = "prefect.flow-run.heartbeat"
OF_RUNS = {"prefect.resource.id": ["prefect.flow-run.*"]}


def automate(environment: Mapping[str, str], notify: str | None) -> None:
    """Create the automations that the server has not. `notify` is a block, TYPE/NAME, that is told of failures.

    Raises ConfigError for a block that there is not, ServerError.
    """
    try:
        with patient_client(environment) as client:
            wanted = [_gone()]
            if notify is not None:
                wanted.append(_tell(_block(client, notify)))
            for automation in wanted:
                _create(client, automation)
    except httpx.HTTPError as error:
        raise ServerError(f"The Prefect server took no automation: {error}.", "Start it again.") from None


def _create(client: httpx.Client, automation: dict[str, Any]) -> None:
    named = {"automations": {"name": {"any_": [automation["name"]]}}}
    there = client.post("/automations/filter", json=named).raise_for_status().json()
    if there and _does(there[0]) == _does(automation):
        return
    for old in there:
        client.delete(f"/automations/{old['id']}").raise_for_status()
    client.post("/automations/", json=automation).raise_for_status()


def _does(automation: Mapping[str, Any]) -> tuple[Any, ...]:
    """What is ours of an automation; how long it waits, and whether it is on, is whose server it is on."""
    return automation["actions"], sorted(automation["trigger"]["expect"])


def _gone() -> dict[str, Any]:
    return {
        "name": GONE,
        "description": f"A run that has not been heard of for {SILENT_SECONDS} seconds was killed: it is Crashed.",
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
                "message": f"Not heard of for {SILENT_SECONDS} seconds, so its process is gone. Run it again: what is "
                "finished is taken from the store.",
                "force": False,
            }
        ],
    }


def _tell(block: str) -> dict[str, Any]:
    return {
        "name": TELL,
        "description": "Runs that fail or crash are told to a notification block: gristmill ui --notify.",
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
