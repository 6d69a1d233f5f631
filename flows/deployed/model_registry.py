"""Registers a release in MLflow's model registry: a version with its place, card, scores and tags.

Nothing is uploaded: a version is a pointer, and the copy is the work of `promote` and `gristmill release push`. The
same release in the same place is one version, however often it is registered. A repetition moves the aliases, and
completes what an interrupted one left out. Credentials are those of MLflow's client: MLFLOW_TRACKING_USERNAME and
MLFLOW_TRACKING_PASSWORD, MLFLOW_TRACKING_TOKEN, or a platform's own.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.lineage.datasets import place_of
from flows.lineage.sending import reason
from flows.records.figures import scores_in
from storage.artifact import Artifact
from storage.credentials import decoded, has_credentials, redact
from storage.errors import ConfigError, ServerError
from storage.store import Store
from tasks.export.release import RELEASED
from tasks.training.tracking.trackers import PROJECT, check_installed

ENVIRONMENT = "environment"  # instead of an address: the variables of MLflow
VARIABLES = ("MLFLOW_REGISTRY_URI", "MLFLOW_TRACKING_URI")
SETTINGS = {  # unless they are set. A server that is away is seen after seconds, where MLflow would take minutes
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
CREDENTIALS = "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
WRONG = "Check its address, and that it runs and has a model registry."
DESCRIPTION = "Releases of Gristmill, each with its card and its scores"
MOST_CHARACTERS = 5000  # of descriptions and tags, in MLflow's own tables
LONGEST = 400  # characters of an error that is not ours
_ALIAS = re.compile(r"(?!latest$|v\d+$)[\w-]{1,255}", re.IGNORECASE)
_FRONT = re.compile(r"\A---\n.*?\n---\n+", re.DOTALL)


@dataclass(frozen=True)
class Registry:
    """A model registry: its address or `environment`, the name of the model there, and an alias besides `released`."""

    address: str
    model: str
    alias: str = ""

    @property
    def uri(self) -> str:
        """The address."""
        if self.address != ENVIRONMENT:
            return self.address
        return next((os.environ[name] for name in VARIABLES if os.environ.get(name)), "")

    @property
    def shown(self) -> str:
        """The address for people, as MLflow's variables may hold a password."""
        return redact(self.uri)

    @property
    def aliases(self) -> list[str]:
        """The aliases that a version gets."""
        return list(dict.fromkeys(alias for alias in (RELEASED, self.alias) if alias))

    def check(self) -> None:
        """Ask the server whether it has a registry, before anything dear. Raises ConfigError and ServerError."""
        check_installed("`registry`", ["mlflow"])
        if not self.uri:
            raise ConfigError("No registry is set.", f"Give an address, or set {' or '.join(VARIABLES)}.")
        if has_credentials(self.address):
            raise ConfigError(
                f"The address {decoded(self.address)} holds a password or a token.", f"Set {CREDENTIALS}."
            )
        if not self.model.strip() or set(self.model) & set("/:'"):
            raise ConfigError(f"A registered model can't be named {self.model!r}.", "Choose one without /, : and '.")
        if self.alias and not _ALIAS.fullmatch(self.alias):
            raise ConfigError(
                f"{self.alias!r} is not an alias.", "Choose letters, digits, - and _, but neither `latest` nor `v1`."
            )
        with self._asked() as client:
            known = _model(client, self.model)
        if known is not None and known.name != self.model:  # MLflow's client takes an empty answer for a model
            raise ServerError(f"The registry {self.uri} answers, but not as MLflow does.", WRONG)

    @contextmanager
    def _asked(self) -> Iterator[Any]:
        """A client of the registry. Within the block its failures become ServerError."""
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        tracking = importlib.import_module("mlflow.tracking")
        given = {} if self.address == ENVIRONMENT else {"tracking_uri": self.uri, "registry_uri": self.uri}
        try:
            yield tracking.MlflowClient(**given)
        except _failures() as error:
            raise ServerError(f"The registry {self.uri} {_said(error)}", _remedy(error)) from None

    def register(self, release: Artifact, profile: str, place: str) -> str:
        """Register a release of a profile that lies at `place`, and return its version. Raises ServerError."""
        named = {"profile": profile, **_tags(release, place)}
        with self._asked() as client:
            if _model(client, self.model) is None:
                client.create_registered_model(self.model, description=DESCRIPTION)
            found = _found(client, self.model, named)
            if found is None:
                run = _run(client, self.model, release, named)
                source = _source(place, run, self.uri)
                card = _FRONT.sub("", release.file("README.md").read_text("utf-8"))[:MOST_CHARACTERS]
                found = client.create_model_version(
                    self.model, source, run_id=run, tags=named, description=card, await_creation_for=0
                )
            for alias in self.aliases:
                client.set_registered_model_alias(self.model, alias, str(found.version))
            return str(found.version)


def place_of_copy(to: str) -> str:
    """The address of a copy: a URL as it is, a folder as file:///…"""
    return to if "://" in to else Path(os.path.abspath(Path(to).expanduser())).as_uri()


def place_in_store(store: Store, release: Artifact) -> str:
    """The address of a release that was copied nowhere."""
    return place_of(store, release.location)


def _failures() -> tuple[type[Exception], ...]:
    """What MLflow's client raises for a server that is away or another, and for a database or its missing driver."""
    errors = importlib.import_module("mlflow.exceptions")
    wire = importlib.import_module("google.protobuf.json_format")
    database = importlib.import_module("sqlalchemy.exc")
    return (errors.MlflowException, wire.Error, database.SQLAlchemyError, ImportError, OSError, ValueError)


def _model(client: Any, name: str) -> Any:
    """The registered model of this name, or None."""
    errors = importlib.import_module("mlflow.exceptions")
    try:
        return client.get_registered_model(name)
    except errors.MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None


def _found(client: Any, model: str, named: Mapping[str, str]) -> Any:
    """The version of this release in this place, or None."""
    page = None
    while True:
        versions = client.search_model_versions(f"name = '{model}'", page_token=page)
        for version in versions:
            if all(version.tags.get(tag) == named[tag] for tag in ("digest", "place")):
                return version
        page = versions.token
        if not page:
            return None


def _run(client: Any, model: str, release: Artifact, named: Mapping[str, str]) -> str:
    """The id of a run with the scores: the one of an earlier registration, or a new one."""
    entities = importlib.import_module("mlflow.entities")
    experiment = client.get_experiment_by_name(PROJECT)
    place = experiment.experiment_id if experiment else client.create_experiment(PROJECT)
    known = client.search_runs([place], f"tags.digest = '{named['digest']}' and tags.registered = '{model}'")
    if known:
        found = known[0]
    else:
        tags = {**named, "registered": model}
        del tags["place"]  # of which a release may have several
        found = client.create_run(place, run_name=f"{model} {release.location}", tags=tags)
    run = str(found.info.run_id)
    if found.info.status != "FINISHED":  # new, or interrupted: a metric logged twice is one
        metrics = [entities.Metric(name, value, found.info.start_time, 0) for name, value in _scores(release).items()]
        if metrics:
            client.log_batch(run, metrics=metrics)
        client.set_terminated(run)
    return run


def _scores(release: Artifact) -> dict[str, float]:
    """The scores of every model that was evaluated, under names that MLflow takes."""
    assert release.manifest is not None
    if "scores.json" not in release.manifest.files:
        return {}
    scores = scores_in(json.loads(release.file("scores.json").read_text("utf-8"))["models"])
    return {
        re.sub(r"[^\w\-. /:]", "_", name): score.value for name, score in scores.items() if math.isfinite(score.value)
    }


def _tags(release: Artifact, place: str) -> dict[str, str]:
    """What a release is, by its manifest. Unknown facts have no tag."""
    manifest = release.manifest
    assert manifest is not None
    config = manifest.payload.config
    origin = config.get("provenance") or {}
    formats = manifest.counts.get("formats") or {}
    tags = {
        "key": manifest.key,
        "digest": manifest.digest,
        "place": place,
        "licence": config.get("weights_licence"),
        "base": origin.get("base"),
        "base_repository": origin.get("base_repository"),
        "base_licence": origin.get("base_licence"),
        "link": origin.get("link"),
        "gristmill": manifest.environment.get("gristmill"),
        **{f"bytes.{name}": counts.get("bytes") for name, counts in formats.items()},
    }
    return {name: str(value)[:MOST_CHARACTERS] for name, value in tags.items() if value}


def _source(place: str, run: str, uri: str) -> str:
    """The version's source. A server refuses folders, which could be its own: then it is the run, and the tag `place`
    names the folder."""
    local = place.startswith("file:")
    return f"runs:/{run}/release" if local and re.match(r"https?:|databricks", uri) else place


def _said(error: Exception) -> str:
    """What a registry did, by its client's error: the first line of that, at most `LONGEST` characters."""
    if "failed with exception" in str(error):
        return f"{reason(error)}."
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return f"failed: {line if len(line) <= LONGEST else f'{line[:LONGEST]} …'}"


def _remedy(error: Exception) -> str:
    code = getattr(error, "error_code", "")
    if code in ("UNAUTHENTICATED", "PERMISSION_DENIED") or " 401 " in str(error) or " 403 " in str(error):
        return f"Set {CREDENTIALS} of a user who may register models."
    return WRONG
