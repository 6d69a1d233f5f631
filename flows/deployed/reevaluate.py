"""Evaluates or exports a stored model again: any link of any run.

The profile's pipeline starts in the middle, with this model as its `base`. So the result is a usual evaluation or
release, under its own name: the profile's refs stay as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from prefect import flow

from flows.deployed.parameters import ProfileName, Ref, Settings
from flows.deployed.run_lifecycle import told
from flows.pages.names import name_as
from flows.pipeline import stages
from flows.session import start
from profiles.load import load
from profiles.schema import Profile
from storage import refs
from storage.errors import ConfigError, StoreError
from storage.store import Store
from tasks.training.chain import LINKS

RELEASE, MODEL = "export", "model"
LONGEST_NAME = 100


@flow(flow_run_name=name_as("{profile}: evaluate {ref}"))
@told
def evaluate_ref(ref: Ref, profile: ProfileName = "tiny", overrides: Settings = ()) -> str:
    """Run the benchmarks of the profile's `evaluate` on a stored model, without the gates."""
    return _run(ref, profile, overrides, "evaluate")


@flow(flow_run_name=name_as("{profile}: export {ref}"))
@told
def export_ref(ref: Ref, profile: ProfileName = "tiny", overrides: Settings = ()) -> str:
    """Write a stored model in the formats of the profile's `export`."""
    return _run(ref, profile, overrides, "export")


def _run(ref: str, profile: str, overrides: Sequence[str], stage: str) -> str:
    with start(profile, [*overrides, *only_stage(load(profile, overrides), ref, stage)], stage, ()) as chosen:
        return stages(chosen).location


def only_stage(profile: Profile, ref: str, stage: str) -> list[str]:
    """The overrides that reduce a profile to `stage` of this model. Raises ConfigError for a profile without that
    section, StoreError for a ref that names no model."""
    if getattr(profile, stage) is None:
        raise ConfigError(f"Profile {profile.name} lacks `{stage}`.", "Choose a profile with it.")
    location = model_of(Store(profile.runtime.store), ref)
    name = re.sub(r"[^a-z0-9]+", "-", f"{profile.name}-{ref}".lower()).strip("-")[:LONGEST_NAME]
    settings: dict[str, object] = {
        "name": name,
        "pretrain": None,
        "draft": None,
        "chain": None,
        **dict.fromkeys(LINKS),
        "base": {"artifact": location},
    }
    if stage == "evaluate":
        # Settings about the profile's other models mean nothing for one model
        settings |= {"export": None, "evaluate.models": [], "evaluate.snapshots": [], "evaluate.gates": []}
        settings |= {"evaluate.side_by_side": None} if profile.evaluate and profile.evaluate.side_by_side else {}
        if profile.evaluate and profile.evaluate.safety:
            settings["evaluate.safety.memorisation"] = None
    else:
        settings |= {"evaluate": None, "export.link": None}
    return [f"{key}={json.dumps(value)}" for key, value in settings.items()]


def model_of(store: Store, ref: str) -> str:
    """The location of the model that a ref names, or that the named release was made from. Raises StoreError."""
    location = refs.resolve(store, ref)
    manifest = store.manifest(location)
    if location.startswith(f"{RELEASE}/") and manifest is not None and MODEL in manifest.origins:
        location = manifest.origins[MODEL].location
        manifest = store.manifest(location)
    if manifest is None or not any(file.startswith(f"{MODEL}/") for file in manifest.files):
        raise StoreError(f"{ref} is not a model.", "Name a release or a stage that trains, such as tiny/dpo.")
    return location
