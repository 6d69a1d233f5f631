"""Promotes a release: checks its gates, asks a person, copies or serves it, names it `released`, and registers it."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path

from prefect import flow, get_run_logger
from prefect.artifacts import create_markdown_artifact

from flows.deployed.approval import wait_for_resume
from flows.deployed.model_registry import Registry, place_in_store, place_of_copy
from flows.deployed.parameters import Address, Alias, Hours, ModelName, Public, Ref, RegistryPlace, StorePlace
from flows.deployed.run_lifecycle import told
from flows.pages.names import name_as
from storage import refs
from storage.artifact import Artifact
from storage.credentials import guard
from storage.errors import ConfigError, ServerError, StoreError
from storage.store import Store
from storage.units import size_of
from tasks.export.release import RELEASED, find_release, profile_of
from tasks.significance.gates import check_gates

SCORES = "scores"


@flow(flow_run_name=name_as("promote {ref}"))
@told
def promote(
    ref: Ref,
    to: Address,
    store: StorePlace = "store",
    public: Public = False,
    hours: Hours = 24.0,
    registry: RegistryPlace = "",
    model: ModelName = "",
    alias: Alias = "",
) -> str:
    """Copy a release to a hub, a bucket or a folder, or swap it into a running server, once its gates are met and a
    person presses Resume. Then register it, if a registry is named."""
    from flows.deployed.destinations import Copied, destination
    from flows.report.in_release import release_report
    from tasks.export.push.outgoing import look, secrets_of
    from tasks.export.release_folder import save

    guard()
    end = destination(to, public)
    opened = Store(store)
    opened.check_exists()
    profile = profile_of(opened, ref)
    known = Registry(registry, model or profile, alias)
    if registry:
        known.check()
    elif model or alias:
        raise ConfigError("`model` and `alias` are of a registry, and none is named.", "Set `registry`, or clear them.")
    artifact = find_release(opened, ref)
    assert artifact.manifest is not None
    scores = artifact.manifest.origins.get(SCORES)
    gates = None if scores is None else check_gates(opened.get(scores.location))
    with tempfile.TemporaryDirectory(prefix="gristmill-release-") as folder:
        saved = Path(folder) / "release"
        save(artifact, saved, release_report(opened, ref))
        outgoing = look(saved)
        end.check(outgoing)
        if secrets := secrets_of(outgoing):
            raise StoreError(
                f"Found a password or a token in {', '.join(secrets.values())}.",
                "Remove it and export again. If it isn't one, push with `gristmill release push --allow-secret`.",
            )
        lines = [f"# {ref} to {end.name}", f"`{artifact.location}`", _table(outgoing.sizes)]
        lines.append(gates_met(gates))
        lines += [f"Licences: {warning}" for warning in outgoing.warnings]
        lines += [f"Found in {finding.where}: {finding.what}" for finding in outgoing.findings]
        create_markdown_artifact("\n\n".join(lines), key="release", description="What would go out")
        beyond = f", is registered as {known.model} in {known.shown}" if registry else ""
        what = f"goes out to {end.name}{beyond} (the artifact `release` of this run lists its files)"
        wait_for_resume(ref, what, hours, of=artifact.digest, always=True)
        end.take(artifact, outgoing, get_run_logger().info)
    name = f"{RELEASED}/{profile}"
    number = refs.move(opened, name, artifact.location, artifact.digest)
    done = f"{end.name} holds the release, which is now {name}@{number}"
    get_run_logger().info(done)
    if registry:
        place = place_of_copy(end.name) if isinstance(end, Copied) else place_in_store(opened, artifact)
        version = register_copy(known, opened, artifact, ref, profile, place, done)
        get_run_logger().info("%s has it as version %s of %s", known.shown, version, known.model)
    return artifact.location


def register_copy(
    known: Registry, store: Store, release: Artifact, ref: str, profile: str, place: str, done: str
) -> str:
    """The version of a release that was copied to `place`. Raises ServerError, which says what is `done` and how to
    repeat the rest."""
    try:
        return known.register(release, profile, place)
    except ServerError as error:
        options = {"registry": known.address, "place": place, "store": store.url, "model": known.model}
        named = [f"--{name}={value}" for name, value in {**options, "alias": known.alias}.items() if value]
        raise ServerError(
            f"{done}, but it is not registered. {error.message}",
            f"{error.remedy} Then register it: {shlex.join(['gristmill', 'release', 'register', ref, *named])}",
        ) from None


def gates_met(gates: int | None) -> str:
    """A sentence on the gates of a release, all of which are met, or None for a release without scores."""
    if gates is None:
        return "It was not evaluated, so it has no gates."
    if not gates:
        return "Its evaluation has no gates: `evaluate.gates` of its profile names none."
    return f"It has met {gates} gate{'s' if gates > 1 else ''}."


def _table(sizes: dict[str, int]) -> str:
    rows = [f"| {name} | {size_of(size)} |" for name, size in sizes.items()]
    return "\n".join(["| file | size |", "|---|---:|", *rows])
