"""Promotes a release: checks its gates, asks a person, copies or serves it, and names it `released`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from prefect import flow, get_run_logger
from prefect.artifacts import create_markdown_artifact

from flows.deployed.approval import wait_for_resume
from flows.deployed.parameters import Address, Hours, Public, Ref, StorePlace
from flows.deployed.run_lifecycle import told
from flows.pages.names import name_as
from storage import refs
from storage.credentials import guard
from storage.errors import StoreError
from storage.store import Store
from storage.units import size_of
from tasks.export.release import find_release
from tasks.significance.gates import check_gates

SCORES = "scores"
RELEASED = "released"


@flow(flow_run_name=name_as("promote {ref}"))
@told
def promote(ref: Ref, to: Address, store: StorePlace = "store", public: Public = False, hours: Hours = 24.0) -> str:
    """Copy a release to a hub, a bucket or a folder, or swap it into a running server, once its gates are met and a
    person presses Resume."""
    from flows.deployed.destinations import destination
    from tasks.export.push.outgoing import look, secrets_of
    from tasks.export.release_folder import save

    guard()
    end = destination(to, public)
    opened = Store(store)
    opened.check_exists()
    artifact = find_release(opened, ref)
    assert artifact.manifest is not None
    scores = artifact.manifest.origins.get(SCORES)
    gates = None if scores is None else check_gates(opened.get(scores.location))
    with tempfile.TemporaryDirectory(prefix="gristmill-release-") as folder:
        saved = Path(folder) / "release"
        save(artifact, saved)
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
        what = f"goes out to {end.name} (the artifact `release` of this run lists its files)"
        wait_for_resume(ref, what, hours, of=artifact.digest, always=True)
        end.take(artifact, outgoing, get_run_logger().info)
    name = f"{RELEASED}/{ref.partition('@')[0].partition('/')[0]}"
    number = refs.move(opened, name, artifact.location, artifact.digest)
    get_run_logger().info("%s holds the release, which is now %s@%d", end.name, name, number)
    return artifact.location


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
