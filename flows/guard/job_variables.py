"""Finds job variables that would make a worker start something else than a deployment's flow.

The job variables of a run and its deployment, and the template of the work pool, set how a worker starts the run: its
command, its folder, its environment. Any of the three can run other code. Gristmill needs neither of the first two, so
its servers refuse them, and accept only environment variables that are known to load no code.
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
OF_IMAGES = ("XDG_CACHE_HOME", "/cache")  # in the templates of deploy/ too: a volume of the container


def replaced_command(variables: Any, *, template: bool = False) -> bool:
    """Whether job variables, or the values of a `template`, have or may have their own command."""
    return isinstance(variables, Mapping) and (
        _refers(variables)
        or any(
            name.partition(".")[0] == "command" and not _is_free(name, variables[name], template) for name in variables
        )
    )


def template_replaces_command(template: Any) -> bool:
    """Whether a work pool's template has its own command, or a default for it."""
    return any(replaced_command(variables, template=place) for variables, place in _of_template(template))


def refused(body: Any) -> str | None:
    """A sentence that names what in a request's body would make a worker start something else, or None."""
    for variables, template in _all_variables(body):
        if not isinstance(variables, Mapping):
            continue
        if _refers(variables):
            return "Job variables and templates of work pools may not refer to blocks, which can hold anything."
        for name, value in variables.items():
            first, _, rest = name.partition(".")  # Prefect takes env.NAME for NAME within env
            if first in FIXED and not _is_free(name, value, template):
                return f"Job variables and templates of work pools may not replace {first}, which starts a run."
            if first == "env" and (rest or not _is_free(name, value, template)):
                wrong = _loads({rest: value} if rest else value)
                if wrong is not None:
                    return f"Job variables and templates of work pools may not set {wrong} in a run's environment."
    return None


def _is_free(name: str, value: Any, template: bool) -> bool:
    """Whether a variable is unset, or is a template's placeholder for the variable of the same name."""
    if value is None or (name == "command" and value == ""):
        return True
    place = rf"\{{\{{\s*{re.escape(name)}\s*\}}\}}"
    return template and isinstance(value, str) and re.fullmatch(place, value.strip()) is not None


def _refers(value: Any) -> bool:
    """Whether a value holds a reference, which Prefect replaces by a block's content."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, Mapping):
            if "$ref" in each:
                return True
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
    return False


def _loads(environment: Any) -> str | None:
    """The first variable that could load other code. For a value that isn't an environment, its type."""
    if not isinstance(environment, Mapping):
        return f"a {type(environment).__name__}"
    names = [name for name, value in environment.items() if (name, value) != OF_IMAGES]
    return next((name or "a nameless variable" for name in names if not HARMLESS.fullmatch(name)), None)


def _all_variables(body: Any) -> Iterator[tuple[Any, bool]]:
    """Job variables at any depth of a body, and the values of templates, with whether they are a template's, which may
    hold placeholders."""
    waiting = [body]
    while waiting:
        each = waiting.pop()
        if isinstance(each, Mapping):
            yield from ((each[name], False) for name in OF_RUNS if name in each)
            yield from _of_template(each.get(OF_POOLS))
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each


def _of_template(template: Any) -> Iterator[tuple[Any, bool]]:
    """The values of a work pool's template, and its defaults for variables that a run does not set."""
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
