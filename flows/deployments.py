"""The deployments of prefect.yaml, registered without taking back what somebody changed on the server.

They are deployed at each start of `gristmill ui`: runs start in the folder that was deployed from, and a newer
Gristmill may have other parameters. Prefect would switch their schedules off and reset their parameters each time, so
those of a deployment that the server has are written into the file that it is given.
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
STAGES = "flows.pools.worker.sent_stage"  # the flow by which a pool makes stages of runs elsewhere
# What a schedule of prefect.yaml may have, of what the server says of one
_TIMES = ("cron", "timezone", "day_or", "interval", "anchor_date", "rrule")
_STATE = ("active", "parameters", "slug")


def deploy(environment: Mapping[str, str], pools: Sequence[str] = ()) -> None:
    """Register the work pool and the deployments with the server of PREFECT_API_URL, and more `pools` of this machine,
    each with a deployment for the stages that a profile gives to it. Raises ServerError."""
    declared = yaml.safe_load(DECLARED.read_text())
    declared["deployments"] += [
        {"name": pool, "entrypoint": STAGES, "work_pool": {"name": pool}, "parameters": {}, "tags": [pool]}
        for pool in pools
    ]
    wanted = {"deployments": {"name": {"any_": [each["name"] for each in declared["deployments"]]}}}
    there = _list("deployments", wanted, environment)
    declared["deployments"] = [_as_it_is(each, there) for each in declared["deployments"]]
    _prefect(["work-pool", "create", POOL, "--type", "process", "--overwrite"], environment)
    known = {pool["name"] for pool in _list("work_pools", {}, environment)} if pools else set()
    for pool in sorted({*pools} - known):  # one that somebody has set up stays as it is
        _prefect(["work-pool", "create", pool, "--type", "process"], environment)
    with tempfile.NamedTemporaryFile("w", prefix="prefect-", suffix=".yaml") as file:
        yaml.safe_dump(declared, file)
        file.flush()
        _prefect(["--no-prompt", "deploy", "--all", "--prefect-file", file.name], environment)
    for each in _list("deployments", wanted, environment):
        _refuse_unknown(each, environment)


def _refuse_unknown(deployment: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    """Let the server refuse parameters that the flow has not, by naming those that it has: the schema that Prefect
    makes of a flow lets them pass, and the run would end by them. Raises ServerError."""
    schema = deployment["parameter_openapi_schema"]
    schema = {**schema, "propertyNames": {"enum": list(schema["properties"])}}
    _ask("patch", f"deployments/{deployment['id']}", {"parameter_openapi_schema": schema}, environment)


def _list(kind: str, wanted: Mapping[str, Any], environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """What the server has of a kind. Raises ServerError."""
    found: list[dict[str, Any]] = _ask("post", f"{kind}/filter", wanted, environment).json()
    return found


def _ask(method: str, path: str, body: Mapping[str, Any], environment: Mapping[str, str]) -> httpx.Response:
    """The server's answer. Raises ServerError."""
    try:
        with patient_client(environment) as client:
            return client.request(method, f"/{path}", json=body).raise_for_status()
    except httpx.HTTPError as error:
        raise ServerError(f"The Prefect server did not answer /{path}: {error}.", "Start it again.") from None


def _as_it_is(declared: dict[str, Any], there: list[dict[str, Any]]) -> dict[str, Any]:
    """A deployment as prefect.yaml declares it, with the parameters, schedules and tags that it has on the server."""
    same = [each for each in there if each["name"] == declared["name"] and each["entrypoint"] == declared["entrypoint"]]
    if not same:
        return declared
    (found,) = same
    schedules = [
        {
            name: value
            for name, value in {**each["schedule"], **each}.items()
            if name in _TIMES + _STATE and value is not None
        }
        for each in found["schedules"]
    ]
    parameters = {name: value for name, value in found["parameters"].items() if value is not None}
    tags = sorted({*declared.get("tags", ()), *found["tags"]})
    return {**declared, "parameters": parameters, "schedules": schedules, "paused": found["paused"], "tags": tags}


def _prefect(arguments: list[str], environment: Mapping[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "prefect", *arguments], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ServerError(
            f"`prefect {' '.join(arguments)}` failed:\n{done.stdout[-800:]}{done.stderr[-800:]}",
            "Fix what the message names.",
        )
