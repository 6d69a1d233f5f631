"""Registers the deployments of prefect.yaml and keeps what somebody changed on the server.

Each start of `gristmill ui` deploys them: runs start in the folder of the deployment, and a newer Gristmill may have
other parameters. Prefect would switch their schedules off and reset their parameters each time. So the file that it
gets has the schedules and parameters of the server's deployments.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import yaml

from flows.server import patient_client
from storage.errors import ServerError

DECLARED = Path(__file__).with_name("prefect.yaml")
POOL = "gristmill"
STAGES = "flows.pools.worker.sent_stage"  # a pool's flow: makes a stage of a run elsewhere
# The fields of a server's schedule that prefect.yaml may have
_TIMES = ("cron", "timezone", "day_or", "interval", "anchor_date", "rrule")
_STATE = ("active", "parameters", "slug")


def deploy(environment: Mapping[str, str], pools: Sequence[str] = ()) -> None:
    """Register the work pool and the deployments with the server of PREFECT_API_URL, and further `pools` of this
    machine, each with a deployment for the stages that a profile sends to it. Raises ServerError."""
    declared = yaml.safe_load(DECLARED.read_text())
    declared["deployments"] += [
        {"name": pool, "entrypoint": STAGES, "work_pool": {"name": pool}, "parameters": {}, "tags": [pool]}
        for pool in pools
    ]
    wanted = {"deployments": {"name": {"any_": [each["name"] for each in declared["deployments"]]}}}
    registered = _list("deployments", wanted, environment)
    declared["deployments"] = [_as_registered(each, registered) for each in declared["deployments"]]
    _prefect(["work-pool", "create", POOL, "--type", "process", "--overwrite"], environment)
    known = {pool["name"] for pool in _list("work_pools", {}, environment)} if pools else set()
    for pool in sorted({*pools} - known):  # somebody else's pool stays as it is
        _prefect(["work-pool", "create", pool, "--type", "process"], environment)
    with tempfile.NamedTemporaryFile("w", prefix="prefect-", suffix=".yaml") as file:
        yaml.safe_dump(declared, file)
        file.flush()
        _prefect(["--no-prompt", "deploy", "--all", "--prefect-file", file.name], environment)
    for each in _list("deployments", wanted, environment):
        _refuse_unknown(each, environment)


def _refuse_unknown(deployment: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    """Have the server refuse unknown parameters, by naming the known ones. Prefect's own schema of a flow lets them
    pass, and the run would fail. Raises ServerError."""
    schema = deployment["parameter_openapi_schema"]
    schema = {**schema, "propertyNames": {"enum": list(schema["properties"])}}
    _ask("patch", f"deployments/{deployment['id']}", {"parameter_openapi_schema": schema}, environment)


def _list(kind: str, wanted: Mapping[str, Any], environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """The server's objects of a kind that match. Raises ServerError."""
    matches: list[dict[str, Any]] = _ask("post", f"{kind}/filter", wanted, environment).json()
    return matches


def _ask(method: str, path: str, body: Mapping[str, Any], environment: Mapping[str, str]) -> httpx.Response:
    """The server's answer. Raises ServerError."""
    try:
        with patient_client(environment) as client:
            return client.request(method, f"/{path}", json=body).raise_for_status()
    except httpx.HTTPError as error:
        raise ServerError(f"The Prefect server did not answer /{path}: {error}.", "Restart it.") from None


def _as_registered(declared: dict[str, Any], registered: list[dict[str, Any]]) -> dict[str, Any]:
    """A deployment as prefect.yaml declares it, with the parameters, schedules and tags that it has on the server."""
    identity = (declared["name"], declared["entrypoint"])
    same = [each for each in registered if (each["name"], each["entrypoint"]) == identity]
    if not same:
        return declared
    (deployment,) = same
    schedules = [
        {
            name: value
            for name, value in {**each["schedule"], **each}.items()
            if name in _TIMES + _STATE and value is not None
        }
        for each in deployment["schedules"]
    ]
    parameters = {name: value for name, value in deployment["parameters"].items() if value is not None}
    tags = sorted({*declared.get("tags", ()), *deployment["tags"]})
    return {**declared, "parameters": parameters, "schedules": schedules, "paused": deployment["paused"], "tags": tags}


def _prefect(arguments: list[str], environment: Mapping[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "prefect", *arguments], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ServerError(
            f"`prefect {' '.join(arguments)}` failed:\n{done.stdout[-800:]}{done.stderr[-800:]}",
            "Fix what the message names.",
        )
