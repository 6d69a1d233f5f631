"""Job variables by which a worker would start something else than the flow of a deployment.

Job variables of a run and of its deployment, and the template of the work pool, say how a worker starts the run: by
which command, in which folder, with which variables of the environment. Any of the three can have other code run.
Nothing of Gristmill needs the first two, so no server of ours takes them, and of the third only what is known to load
none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

OF_RUNS = ("job_variables", "infra_overrides")  # the second is Prefect's older name
OF_POOLS = "base_job_template"
FIXED = ("command", "working_dir")
HARMLESS = re.compile(
    r"CUDA_VISIBLE_DEVICES|(?:OMP|MKL|NUMBA)_NUM_THREADS|TZ|LANG|LC_\w+|PREFECT_LOGGING_LEVEL|DO_NOT_TRACK"
    r"|HF_TOKEN|HF_(?:HUB|DATASETS)_OFFLINE|WANDB_API_KEY|TOKENIZERS_PARALLELISM|PYTHONUNBUFFERED"
    r"|AWS_(?:ACCESS_KEY_ID|SECRET_ACCESS_KEY|SESSION_TOKEN|REGION|DEFAULT_REGION)|GRISTMILL_CACHE_GB"
)
OF_IMAGES = ("XDG_CACHE_HOME", "/cache")  # what the templates of deploy/ have besides: a volume of the container


def replaced_command(variables: Any, *, template: bool = False) -> bool:
    """Whether job variables, or what a `template` sets, have a command of their own, or may have one."""
    return isinstance(variables, Mapping) and (
        _refers(variables)
        or any(
            name.partition(".")[0] == "command" and not _is_free(name, variables[name], template) for name in variables
        )
    )


def template_replaces_command(template: Any) -> bool:
    """Whether the template of a work pool has a command of its own, or a default for it."""
    return any(replaced_command(variables, template=place) for variables, place in _of_template(template))


def refused(body: Any) -> str | None:
    """What of a request's body would have a worker start something else: a sentence, or None."""
    for variables, template in _all_variables(body):
        if not isinstance(variables, Mapping):
            continue
        if _refers(variables):
            return "Job variables and templates of work pools may not refer to blocks, which can hold anything."
        for name, value in variables.items():
            first, _, rest = name.partition(".")  # Prefect takes env.NAME for NAME within env
            if first in FIXED and not _is_free(name, value, template):
                return f"Job variables and templates of work pools may not replace {first}, what a run is started by."
            if first == "env" and (rest or not _is_free(name, value, template)):
                wrong = _loads({rest: value} if rest else value)
                if wrong is not None:
                    return f"Job variables and templates of work pools may not set {wrong} in a run's environment."
    return None


def _is_free(name: str, value: Any, template: bool) -> bool:
    """Whether a variable is unset, or is where a template has the variable of the same name."""
    if value is None or (name == "command" and value == ""):
        return True
    place = rf"\{{\{{\s*{re.escape(name)}\s*\}}\}}"
    return template and isinstance(value, str) and re.fullmatch(place, value.strip()) is not None


def _refers(found: Any) -> bool:
    """Whether there is a reference, in whose place Prefect puts what a block holds."""
    left = [found]
    while left:
        each = left.pop()
        if isinstance(each, Mapping):
            if "$ref" in each:
                return True
            left += each.values()
        elif isinstance(each, list):
            left += each
    return False


def _loads(environment: Any) -> str | None:
    """The first variable that could load other code; of what is no environment, what it is."""
    if not isinstance(environment, Mapping):
        return f"a {type(environment).__name__}"
    of_others = [name for name, value in environment.items() if (name, value) != OF_IMAGES]
    return next((name or "a nameless variable" for name in of_others if not HARMLESS.fullmatch(name)), None)


def _all_variables(body: Any) -> Iterator[tuple[Any, bool]]:
    """Job variables within a body, however deep, and what templates set, where they may have a variable's place."""
    left = [body]
    while left:
        found = left.pop()
        if isinstance(found, Mapping):
            yield from ((found[name], False) for name in OF_RUNS if name in found)
            yield from _of_template(found.get(OF_POOLS))
            left += found.values()
        elif isinstance(found, list):
            left += found


def _of_template(template: Any) -> Iterator[tuple[Any, bool]]:
    """What the template of a work pool sets, and the values of variables that a run does not set."""
    if not isinstance(template, Mapping):
        return
    yield template.get("job_configuration"), True
    declared = template.get("variables")
    properties = declared.get("properties") if isinstance(declared, Mapping) else None
    if isinstance(properties, Mapping):
        defaults = {
            name: value["default"]
            for name, value in properties.items()
            if isinstance(value, Mapping) and "default" in value
        }
        yield defaults, False
