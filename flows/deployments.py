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

from flows.server import credentials
from storage.errors import ServerError

DECLARED = Path(__file__).with_name("prefect.yaml")
POOL = "gristmill"
STAGES = "flows.pools.work.sent_stage"  # the flow by which a pool makes stages of runs elsewhere
# What a schedule of prefect.yaml may have, of what the server says of one
_TIMES = ("cron", "timezone", "day_or", "interval", "anchor_date", "rrule")
_STATE = ("active", "parameters", "slug")


def deploy(environment: Mapping[str, str], pools: Sequence[str] = ()) -> None:
    """Register the work pool and the deployments with the server of PREFECT_API_URL, and more `pools` of this machine,
    each with a deployment for the stages that a profile gives to it. Raises ServerError."""
    declared = yaml.safe_load(DECLARED.read_text())
    declared["deployments"] += [
        {"name": pool, "entrypoint": STAGES, "work_pool": {"name": pool}, "parameters": {}} for pool in pools
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


def _list(kind: str, wanted: Mapping[str, Any], environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """What the server has of a kind. Raises ServerError."""
    try:
        answer = httpx.post(
            f"{environment['PREFECT_API_URL']}/{kind}/filter", json=wanted, auth=credentials(environment), timeout=30
        )
        found: list[dict[str, Any]] = answer.raise_for_status().json()
    except httpx.HTTPError as error:
        problem = f"The Prefect server gave no list of its {kind.replace('_', ' ')}: {error}."
        raise ServerError(problem, "Start it again.") from None
    return found


def _as_it_is(declared: dict[str, Any], there: list[dict[str, Any]]) -> dict[str, Any]:
    """A deployment as prefect.yaml declares it, with the parameters and schedules that it has on the server."""
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
    return {**declared, "parameters": parameters, "schedules": schedules, "paused": found["paused"]}


def _prefect(arguments: list[str], environment: Mapping[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "prefect", *arguments], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ServerError(
            f"`prefect {' '.join(arguments)}` failed:\n{done.stdout[-800:]}{done.stderr[-800:]}",
            "Fix what the message names.",
        )
