"""Names and tags of runs in the Prefect UI: the profile, the last stage, and the overrides."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from profiles.stage_names import ALL
from storage.credentials import redact

LONGEST = 80  # characters
GREEK = (
    "alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|omicron|pi|rho|sigma|tau|upsilon|phi|chi|psi|"
    "omega"
)
PRAISE = (
    "Awesome|Ergonomic|Fantastic|Generic|Gorgeous|Handcrafted|Handmade|Incredible|Intelligent|Licensed|Practical|Refined|"
    "Rustic|Sleek|Small|Tasty|Unbranded"
)
MADE_UP = (
    "[a-z]+-[a-z]+",  # the server: an adjective and an animal
    rf"(?:{GREEK})\d*(?:-+[a-z]+)+",  # the form: a star, as in chi4-morthond and iota-canis-majoris-fringe
    rf"(?:{PRAISE})-[^\W\d_][^-]{{0,5}}",  # the form of the new UI: a dish, as in Tasty-Sushi
)


def run_name(profile: str, overrides: Sequence[str], to: str | None, refresh: Collection[str]) -> str:
    """`smoke to filter, filter.form=null, dedup rebuilt`. Omits runtime settings, which don't change results."""
    parts = [f"{profile} to {to}" if to else profile]
    parts += [redact(setting) for setting in overrides if not setting.startswith("runtime.")]
    parts += [f"{stage} rebuilt" for stage in sorted(refresh)]
    name = ", ".join(parts)
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 3]}..."


def name_of_run() -> str:
    """The name of the starting flow run: a person's, or one from its parameters."""
    return _named(_by_parameters)


def name_as(template: str) -> Callable[[], str]:
    """Like `name_of_run`, but with a template for the parameters."""

    def fill(parameters: dict[str, Any]) -> str:
        return redact(template.format(**{**parameters, "profile": profile_of(str(parameters.get("profile")))}))

    return lambda: _named(fill)


def _named(make: Callable[[dict[str, Any]], str]) -> str:
    from prefect.context import FlowRunContext

    context = FlowRunContext.get()
    assert context is not None
    assert context.flow_run is not None
    return make(context.parameters or {}) if is_random(context.flow_run.name) else context.flow_run.name


def _by_parameters(parameters: dict[str, Any]) -> str:
    profile, overrides = profile_of(str(parameters.get("profile", ""))), parameters.get("overrides") or ()
    if name := parameters.get("name"):  # a run of one stage
        return run_name(profile, overrides, name, [name] * bool(parameters["refresh"]))
    return run_name(profile, overrides, parameters.get("to"), parameters.get("refresh") or ())


def profile_among(parameters: Mapping[str, Any]) -> str:
    """The profile that a flow's parameters name: directly, in a stage's order, or before the slash of a ref. Empty if
    the ref is a stage's artifact."""
    if "profile" in parameters:
        return redact(profile_of(str(parameters["profile"])))
    if "order" in parameters:
        order = parameters["order"]
        return str(order["profile"] if isinstance(order, Mapping) else order.profile)
    first, _, _ = str(parameters.get("ref", "")).partition("/")
    return "" if first in ALL else first


def profile_of(name: str) -> str:
    """The name of a profile, which may be a path."""
    return Path(name).stem if name.endswith((".yaml", ".yml")) else name


def is_random(name: str) -> bool:
    """Whether Prefect, or one of its two forms, made this name up."""
    return any(re.fullmatch(form, name) for form in MADE_UP)
