"""How runs are named in the Prefect UI, and tagged: by the profile, where they end, and what was asked otherwise."""

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
    """`smoke to filter, filter.form=null, dedup anew`. Settings of the runtime change no result and are left out."""
    parts = [f"{profile} to {to}" if to else profile]
    parts += [redact(setting) for setting in overrides if not setting.startswith("runtime.")]
    parts += [f"{stage} anew" for stage in sorted(refresh)]
    name = ", ".join(parts)
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 3]}..."


def name_of_run() -> str:
    """The name of the flow run that begins: that which a person gave it, or one by its parameters."""
    return _named(_by_parameters)


def name_as(template: str) -> Callable[[], str]:
    """As `name_of_run`, with parameters put into a template in place of the default."""

    def filled(given: dict[str, Any]) -> str:
        return redact(template.format(**{**given, "profile": profile_of(str(given.get("profile")))}))

    return lambda: _named(filled)


def _named(make: Callable[[dict[str, Any]], str]) -> str:
    from prefect.context import FlowRunContext

    context = FlowRunContext.get()
    assert context is not None
    assert context.flow_run is not None
    return make(context.parameters or {}) if is_random(context.flow_run.name) else context.flow_run.name


def _by_parameters(given: dict[str, Any]) -> str:
    profile = profile_of(str(given.get("profile", "")))
    if "name" in given:  # of one stage
        return run_name(profile, given.get("overrides") or (), given["name"], [given["name"]] * bool(given["refresh"]))
    return run_name(profile, given.get("overrides") or (), given.get("to"), given.get("refresh") or ())


def profile_among(given: Mapping[str, Any]) -> str:
    """The profile that a flow's parameters name: as such, in a stage's order, or before the slash of a ref; none where
    that is a stage's artifact."""
    if "profile" in given:
        return redact(profile_of(str(given["profile"])))
    if "order" in given:
        order = given["order"]
        return str(order["profile"] if isinstance(order, Mapping) else order.profile)
    first, _, _ = str(given.get("ref", "")).partition("/")
    return "" if first in ALL else first


def profile_of(given: str) -> str:
    """The name of a profile that may be given as a file."""
    return Path(given).stem if given.endswith((".yaml", ".yml")) else given


def is_random(name: str) -> bool:
    """Whether Prefect, or one of its two forms, made up a name where nobody gave one."""
    return any(re.fullmatch(form, name) for form in MADE_UP)
