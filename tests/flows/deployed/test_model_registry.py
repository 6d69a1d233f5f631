"""A release in MLflow's model registry: one version for each place, with card, scores, tags and aliases.

Needs MLflow's server, which the extra `mlflow` doesn't bring: `pip install mlflow` in another environment, with its
`bin` on PATH.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from flows.deployed.model_registry import MOST_CHARACTERS, Registry, place_in_store, place_of_copy
from flows.deployed.promote import register_copy
from storage.artifact import Artifact
from storage.errors import ConfigError, ServerError
from storage.store import Store
from tasks.children.launchers import free_port
from tests.flows.commands.test_cli import gristmill, publish
from tests.flows.lineage.receiver import receiving
from tests.flows.running_ui import END, resume, running_ui, started, state

CARD = "---\nlicence: mit\n---\n# A card\n\n" + "Word. " * 2000
PASSWORD = "a-password-of-some-length"
AUTH = f"""[mlflow]
default_permission = READ
database_uri = sqlite:///FOLDER/users.db
admin_username = admin
admin_password = {PASSWORD}
authorization_function = mlflow.server.auth:authenticate_request_basic_auth
"""


@pytest.fixture(scope="module", autouse=True)
def client() -> None:
    pytest.importorskip("mlflow", reason="needs the extra mlflow")


@contextmanager
def serving(folder: Path, *options: str, **variables: str) -> Iterator[str]:
    """MLflow's server over SQLite: its address."""
    command = shutil.which("mlflow")
    if command is None:
        pytest.skip("needs MLflow's server on PATH")
    url, log = f"http://127.0.0.1:{free_port()}", folder / "server.log"
    places = [f"--backend-store-uri=sqlite:///{folder}/mlflow.db", f"--artifacts-destination={folder}/files"]
    where = ["--host=127.0.0.1", f"--port={url.rpartition(':')[2]}", "--workers=1"]
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with (
        log.open("wb") as out,
        subprocess.Popen(
            [command, "server", *places, *where, *options],
            stdout=out,
            stderr=out,
            env={**own, "MLFLOW_DISABLE_TELEMETRY": "true", **variables},
            start_new_session=True,
        ) as process,
    ):
        try:
            deadline = time.monotonic() + 120
            while not _answers(url):
                if process.poll() is not None or time.monotonic() > deadline:
                    pytest.skip(f"MLflow's server doesn't start: {log.read_text()[-500:]}")
                time.sleep(0.2)
            yield url
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _answers(url: str) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(f"{url}/health", timeout=10).status_code == httpx.codes.OK
    return False


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("mlflow")) as url:
        yield url


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(str(tmp_path / "store"))
    scores = json.dumps({"models": {"dpo": {"bits_per_byte": 1.5, "tasks": {"arc": {"value": 0.25}}}}})
    publish(made, "export", {"README.md": CARD.encode(), "model.safetensors": bytes(8), "scores.json": scores.encode()})
    return made


def release_of(store: Store) -> Artifact:
    """The release, as an evaluated one with a licence and two formats."""
    (location,) = store.locations()
    artifact = store.get(location)
    assert artifact.manifest is not None
    config = {"weights_licence": "Apache-2.0", "provenance": {"link": "dpo", "base": "some-base"}}
    manifest = artifact.manifest.model_copy(
        update={
            "payload": artifact.manifest.payload.model_copy(update={"config": config}),
            "counts": {"formats": {"safetensors": {"bytes": 8}, "int8": {"bytes": 4}}},
        }
    )
    return replace(artifact, manifest=manifest)


def client_of(url: str) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=url, registry_uri=url)


@pytest.mark.soak
def test_the_same_release_in_the_same_place_is_one_version(server: str, store: Store) -> None:
    release, known = release_of(store), Registry(server, "twice", "champion")
    known.check()
    assert known.register(release, "tiny", "s3://bucket/model") == "1"
    assert known.register(release, "tiny", "hf://me/model") == "2"
    asked = client_of(server)
    assert asked.get_model_version_by_alias("twice", "released").version == "2"
    assert replace(known, alias="").register(release, "tiny", "s3://bucket/model") == "1"
    assert asked.get_model_version_by_alias("twice", "released").version == "1"
    assert asked.get_model_version_by_alias("twice", "champion").version == "2"
    first, second = sorted(asked.search_model_versions("name = 'twice'"), key=lambda version: version.version)
    assert (first.source, second.source, first.run_id) == ("s3://bucket/model", "hf://me/model", second.run_id)
    assert first.description.startswith("# A card")
    assert len(first.description) == MOST_CHARACTERS
    assert release.manifest is not None
    wanted = {
        "profile": "tiny",
        "key": release.manifest.key,
        "digest": release.digest,
        "place": "s3://bucket/model",
        "licence": "Apache-2.0",
        "base": "some-base",
        "link": "dpo",
        "bytes.safetensors": "8",
        "bytes.int8": "4",
    }
    assert wanted.items() <= first.tags.items()
    assert first.tags.keys() - wanted.keys() <= {"gristmill"}


@pytest.mark.soak
def test_an_interrupted_registration_is_completed(server: str, store: Store) -> None:
    release, asked = release_of(store), client_of(server)
    known = Registry(server, "interrupted")
    first = asked.get_model_version("interrupted", known.register(release, "tiny", "s3://bucket/model"))
    asked.delete_model_version("interrupted", first.version)
    asked.delete_run(first.run_id)
    tags = {"digest": release.digest, "registered": "interrupted"}
    begun = asked.create_run(asked.get_experiment_by_name("gristmill").experiment_id, tags=tags)
    again = asked.get_model_version("interrupted", known.register(release, "tiny", "s3://bucket/model"))
    assert again.run_id == begun.info.run_id
    run = asked.get_run(again.run_id)
    assert (run.info.status, run.data.metrics) == ("FINISHED", {"dpo arc": 0.25, "dpo bits per byte": 1.5})


@pytest.mark.soak
def test_a_folder_is_named_by_a_tag_as_a_server_takes_none_for_a_source(server: str, store: Store) -> None:
    known, release = Registry(server, "folder"), release_of(store)
    for place in (place_in_store(store, release), place_of_copy("some/folder")):
        version = client_of(server).get_model_version("folder", known.register(release, "tiny", place))
        assert version.tags["place"] == place
        assert place.startswith("file:///")
        assert version.source == f"runs:/{version.run_id}/release"


@pytest.mark.soak
def test_the_command_registers_under_the_name_of_the_profile(
    server: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("release", "register", "tiny/export", f"--store={store.url}")
    done = gristmill(*command, f"--registry={server}", "--alias=champion")
    assert done.returncode == 0, done.stderr
    assert "version 1 of tiny, as released and champion." in done.stdout
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    again = gristmill(*command, "--place=s3://bucket/model")
    assert "version 2 of tiny, as released." in again.stdout


@pytest.mark.soak
def test_a_server_with_users_refuses_others_and_no_password_is_shown(tmp_path: Path, store: Store) -> None:
    (tmp_path / "auth.ini").write_text(AUTH.replace("FOLDER", str(tmp_path)))
    variables = {"MLFLOW_AUTH_CONFIG_PATH": str(tmp_path / "auth.ini"), "MLFLOW_FLASK_SERVER_SECRET_KEY": "some-key"}
    with serving(tmp_path, "--app-name=basic-auth", **variables) as url, pytest.MonkeyPatch.context() as patched:
        known = Registry(url, "tiny")
        with pytest.raises(ServerError, match="error code 401") as refused:
            known.check()
        assert "MLFLOW_TRACKING_USERNAME" in refused.value.remedy
        reader = {"username": "reader", "password": f"another-{PASSWORD}"}
        httpx.post(
            f"{url}/api/2.0/mlflow/users/create", json=reader, auth=("admin", PASSWORD), timeout=60
        ).raise_for_status()
        patched.setenv("MLFLOW_TRACKING_USERNAME", "admin")
        patched.setenv("MLFLOW_TRACKING_PASSWORD", PASSWORD)
        assert known.register(release_of(store), "tiny", "s3://bucket/model") == "1"
        patched.setenv("MLFLOW_TRACKING_URI", url.replace("//", f"//admin:{PASSWORD}@"))
        assert Registry("environment", "tiny").shown == url.replace("//", "//***@")
        patched.setenv("MLFLOW_TRACKING_USERNAME", reader["username"])
        patched.setenv("MLFLOW_TRACKING_PASSWORD", reader["password"])
        known.check()
        with pytest.raises(ServerError, match="403"):
            known.register(release_of(store), "tiny", "s3://bucket/other")


@pytest.mark.parametrize(
    ("mode", "said"),
    [("page", "not as MLflow does"), ("garbage", "not as MLflow does"), ("away", "refused the connection")],
)
def test_what_is_no_registry_is_said_before_anything_is_copied(
    mode: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with receiving(mode) as other, pytest.raises(ServerError, match=said):
        Registry(f"http://127.0.0.1:{free_port()}" if mode == "away" else other.url, "tiny").check()


@pytest.mark.parametrize("address", ["mysql://127.0.0.1:1/registry", "sqlite:///FOLDER/file/mlflow.db"])
def test_a_database_that_can_not_be_opened_is_no_traceback(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlflow.store.db.utils.MAX_RETRY_COUNT", 0)
    (tmp_path / "file").touch()
    with pytest.raises(ServerError, match="failed"):
        Registry(address.replace("FOLDER", str(tmp_path)), "tiny").check()


@pytest.mark.soak
def test_a_promoted_release_is_registered_after_it_went_out(server: str, store: Store, tmp_path: Path) -> None:
    asked = {"ref": "tiny/export", "store": store.url, "to": str(tmp_path / "out"), "model": "promoted"}
    with running_ui(tmp_path) as ui:
        nowhere = started(ui, "promote", **asked, registry=f"http://127.0.0.1:{free_port()}")
        assert "refused the connection" in state(ui, nowhere, *END)["message"], "nobody is asked"
        for alias in ("champion", "staging"):
            run = started(ui, "promote", **asked, registry=server, alias=alias)
            assert f"is registered as promoted in {server}" in state(ui, run, "PAUSED", *END)["message"]
            assert (alias == "champion") != (tmp_path / "out").exists()
            resume(ui, run)
            assert state(ui, run, *END)["type"] == "COMPLETED"
            ui.tells(run, "as version 1 of promoted")
    (version,) = client_of(server).search_model_versions("name = 'promoted'")
    assert version.tags["place"] == (tmp_path / "out").as_uri()
    aliases = client_of(server).get_registered_model("promoted").aliases
    assert aliases == dict.fromkeys(("released", "champion", "staging"), "1")


def test_a_copy_that_could_not_be_registered_is_named_with_the_command_for_the_rest(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    known = Registry(f"http://127.0.0.1:{free_port()}", "my model", "champion")
    with pytest.raises(ServerError) as failed:
        register_copy(known, store, release_of(store), "tiny/export@1", "tiny", "s3://bucket/model", "It is there")
    assert failed.value.message.startswith("It is there, but it is not registered.")
    command = shlex.split(failed.value.remedy.partition("Then register it: ")[2])
    assert command[:4] == ["gristmill", "release", "register", "tiny/export@1"]
    again = gristmill(*command[1:])
    assert f"Error: The registry {known.address} refused the connection." in again.stderr, "the command is understood"


@pytest.mark.parametrize(
    ("registry", "said"),
    [
        (Registry("http://me:secret-word@host", "tiny"), r"\*\*\*@host holds a password"),
        (Registry("http://host", "a/b"), "can't be named 'a/b'"),
        (Registry("http://host", "it's"), "can't be named \"it's\""),
        (Registry("http://host", "tiny", "latest"), "'latest' is not an alias"),
        (Registry("http://host", "tiny", "V2"), "'V2' is not an alias"),
        (Registry("environment", "tiny"), "No registry is set"),
    ],
)
def test_wrong_settings_are_refused_without_a_request(
    registry: Registry, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=said):
        registry.check()
