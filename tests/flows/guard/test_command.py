"""A page of another site can make a worker run a command with Prefect's plain server, but not with ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from flows.deployed.run_lifecycle import told
from flows.pools.runs import FLOW, pools_of_server
from flows.server import credentials, start, stop
from storage.errors import ConfigError
from tests.flows.guard.unguarded import unguarded
from tests.flows.running_ui import sent, served, speaking_to, until
from tests.pipeline.runs import ROOT


@pytest.mark.soak
@pytest.mark.parametrize("guarded", [True, False])
def test_a_page_has_the_worker_run_no_command_and_deletes_no_deployment(guarded: bool, tmp_path: Path) -> None:
    with (served if guarded else unguarded)(tmp_path / "prefect") as environment:
        api, made = environment["PREFECT_API_URL"], tmp_path / "made"
        create = [sys.executable, "-m", "prefect", "work-pool", "create", "pool", "--type", "process"]
        subprocess.run(create, env=environment, cwd=ROOT, check=True, capture_output=True)
        flow: Any = sent(environment, "POST", "/flows/", {"name": "flow"}).json()
        body = {"name": "here", "flow_id": flow["id"], "work_pool_name": "pool", "entrypoint": "flows.flow.run_stage"}
        deployment = sent(environment, "POST", "/deployments/", body).raise_for_status().json()["id"]
        work = [sys.executable, "-m", "prefect", "worker", "start", "--pool", "pool"]
        worker = start(work, environment)
        try:
            until(
                "the worker does not come",
                lambda: bool(sent(environment, "POST", "/work_pools/pool/workers/filter", {}).json()),
            )
            rebound = {"Host": "evil.example:4200", "Origin": "http://evil.example:4200"}
            answers = [
                httpx.post(
                    f"{api}/deployments/{deployment}/create_flow_run",
                    json={"job_variables": {"command": f"touch {made}"}},
                    headers=rebound,
                    auth=credentials(environment),
                )
            ]
            if guarded:
                right = sent(environment, "POST", f"/deployments/{deployment}/create_flow_run", {})
                until("the worker takes no run", lambda: _ended(environment, right.json()["id"]))
                assert not made.exists()
            else:
                until("the command is not run", made.exists)
            evil = {"Origin": "https://evil.example"}
            answers.append(httpx.post(f"{api}/deployments/bulk_delete", headers=evil, auth=credentials(environment)))
            left = sent(environment, "POST", "/deployments/count", {}).json()
        finally:
            stop([worker])  # on a busy machine one did not end by itself
    assert [answer.status_code for answer in answers] == ([421, 403] if guarded else [201, 200])
    assert left == (1 if guarded else 0)


@pytest.mark.soak
def test_on_a_server_of_others_no_run_is_sent_where_its_command_is_replaced_and_one_that_was_ends(
    tmp_path: Path,
) -> None:
    from prefect import flow
    from prefect.client.orchestration import get_client
    from prefect.flow_engine import run_flow

    @flow(name=FLOW)
    @told
    def makes() -> str:
        return "it has run"

    nice: dict[str, Any] = {"command": "nice prefect flow-run execute"}
    variables = {"type": "object", "properties": {"command": {"type": "string"}}}
    usual = {"job_configuration": {"command": "{{ command }}"}, "variables": variables}
    of_pool = {"job_configuration": {"command": "nice {{ command }}"}, "variables": variables}
    with unguarded(tmp_path) as environment, speaking_to(environment), get_client(sync_client=True) as client:
        for name, template, of_runs in (("runs", usual, nice), ("pool", of_pool, {}), ("sound", usual, {})):
            pool = {"name": name, "type": "process", "base_job_template": template}
            sent(environment, "POST", "/work_pools/", pool).raise_for_status()
            deployment = client.create_deployment(
                client.create_flow(makes), name=name, work_pool_name=name, job_variables=of_runs
            )
        for name in ("runs", "pool"):
            with pytest.raises(ConfigError, match=f"work pool {name} starts runs with another command"):
                pools_of_server([name])
        (sound,) = pools_of_server(["sound"])
        assert sound.deployment == deployment
        run = client.create_flow_run_from_deployment(deployment, job_variables=nice)
        state: Any = run_flow(makes, flow_run=run, return_type="state")
        assert state.name == "Failed"
        assert state.message.startswith("The job variables of this run replace its command.")


def _ended(environment: dict[str, str], run: str) -> bool:
    state = sent(environment, "GET", f"/flow_runs/{run}").json()["state_type"]
    return state in ("COMPLETED", "FAILED", "CRASHED")
