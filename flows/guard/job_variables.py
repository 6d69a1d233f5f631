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


def replaced_command(variables: Any) -> bool:
    """Whether job variables have a command of their own."""
    return isinstance(variables, Mapping) and any(
        name.partition(".")[0] == "command" and not _is_place(name, value) for name, value in variables.items()
    )


def template_replaces_command(template: Any) -> bool:
    """Whether the template of a work pool has a command of its own, or a default for it."""
    return any(map(replaced_command, _of_template(template)))


def refused(body: Any) -> str | None:
    """What of a request's body would have a worker start something else: a sentence, or None."""
    for variables in _all_variables(body):
        for name, value in variables.items() if isinstance(variables, Mapping) else ():
            first, _, rest = name.partition(".")  # Prefect takes env.NAME for NAME within env
            if first in FIXED and not _is_place(name, value):
                return f"Job variables and templates of work pools may not replace {first}, what a run is started by."
            if first == "env" and not _is_place(name, value):
                wrong = _loads({rest: value} if rest else value)
                if wrong is not None:
                    return f"Job variables and templates of work pools may not set {wrong} in a run's environment."
    return None


def _is_place(name: str, value: Any) -> bool:
    """Whether a variable is unset, or is where a template has the variable of the same name."""
    return (
        value is None
        or value == ""
        or (isinstance(value, str) and re.fullmatch(rf"\{{\{{\s*{re.escape(name)}\s*\}}\}}", value.strip()) is not None)
    )


def _loads(environment: Any) -> str | None:
    """The first variable that could load other code; of what is no environment, what it is."""
    if not isinstance(environment, Mapping):
        return f"a {type(environment).__name__}"
    of_others = [name for name, value in environment.items() if (name, value) != OF_IMAGES]
    return next((name for name in of_others if not HARMLESS.fullmatch(name)), None)


def _all_variables(body: Any) -> Iterator[Any]:
    """Job variables within a body, however deep, and what templates set."""
    left = [body]
    while left:
        found = left.pop()
        if isinstance(found, Mapping):
            yield from (found[name] for name in OF_RUNS if name in found)
            yield from _of_template(found.get(OF_POOLS))
            left += found.values()
        elif isinstance(found, list):
            left += found


def _of_template(template: Any) -> Iterator[Any]:
    """What the template of a work pool sets, and the values of variables that a run does not set."""
    if not isinstance(template, Mapping):
        return
    yield template.get("job_configuration")
    declared = template.get("variables")
    properties = declared.get("properties") if isinstance(declared, Mapping) else None
    if isinstance(properties, Mapping):
        yield {
            name: value["default"]
            for name, value in properties.items()
            if isinstance(value, Mapping) and "default" in value
        }
