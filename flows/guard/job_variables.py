"""Job variables by which a worker would start something else than the flow of a deployment.

Job variables of a run and of its deployment, and the template of the work pool, say how a worker starts the run, and
`command` among them may be any command. Nothing of Gristmill needs that, so no server of ours takes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

OF_RUNS = ("job_variables", "infra_overrides")  # the second is Prefect's older name
OF_POOLS = "base_job_template"
PLACE = re.compile(r"\{\{\s*command\s*\}\}")  # where a template has what Prefect itself puts together
# Variables by which a shell, the linker, Python or Prefect load other code, or speak to another server
LOADS = re.compile(
    r"PATH|HOME|ENV|BASH_ENV|(?:LD|DYLD)_\w+|PYTHON\w*|PREFECT__\w+|PREFECT_(?:HOME|PROFILE\w*|API_\w+|CLIENT_CUSTOM\w+)"
)


def replaced_command(variables: Any) -> bool:
    """Whether job variables have a command of their own."""
    command = variables.get("command") if isinstance(variables, Mapping) else None
    return not (command in (None, "") or (isinstance(command, str) and PLACE.fullmatch(command.strip())))


def template_replaces_command(template: Any) -> bool:
    """Whether the template of a work pool has a command of its own, or a default for it."""
    if not isinstance(template, Mapping):
        return False
    return replaced_command(template.get("job_configuration")) or replaced_command(_defaults(template))


def refused(body: Any) -> str | None:
    """What of a request's body would have a worker start something else: a sentence, or None."""
    for variables in _all_variables(body):
        if replaced_command(variables):
            return "Job variables, and templates of work pools, may not replace the command of a run."
        if not isinstance(variables, Mapping):
            continue
        if variables.get("working_dir") not in (None, "", "{{ working_dir }}"):
            return "Job variables may not have a run start in another folder: Python would look for its code there."
        environment = variables.get("env")
        loads = [str(name) for name in environment if LOADS.fullmatch(str(name))] if environment else []
        if isinstance(environment, Mapping) and loads:
            return f"Job variables may not set {loads[0]} in the environment of a run: it could load other code."
    return None


def _all_variables(body: Any) -> Iterator[Any]:
    """Job variables within a body, however deep, and what a template sets."""
    left = [body]
    while left:
        found = left.pop()
        if isinstance(found, Mapping):
            yield from (found[name] for name in OF_RUNS if name in found)
            if isinstance(template := found.get(OF_POOLS), Mapping):
                yield template.get("job_configuration")
                yield _defaults(template)
            left += found.values()
        elif isinstance(found, list):
            left += found


def _defaults(template: Mapping[str, Any]) -> dict[str, Any]:
    """The values that a template gives to variables which a run does not set."""
    declared = template.get("variables")
    properties = declared.get("properties") if isinstance(declared, Mapping) else None
    if not isinstance(properties, Mapping):
        return {}
    return {
        name: value["default"]
        for name, value in properties.items()
        if isinstance(value, Mapping) and "default" in value
    }
