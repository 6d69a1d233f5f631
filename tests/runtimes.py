"""Runtimes for tests, by the plain names of their fields: `runtime_of(workers=1, engine="ddp")`.

A name that several groups have means that of `group`, or else of the first, which is `pretrain`.
"""

from __future__ import annotations

from typing import Any

from tasks.stage.runtime import Runtime, RuntimeGroup

GROUPS = {
    name: field.annotation
    for name, field in Runtime.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, RuntimeGroup)
}


def runtime_of(base: Runtime | None = None, *, group: str | None = None, **settings: Any) -> Runtime:
    """`base`, or the defaults, with these settings, checked as those of a profile are."""
    data = (base or Runtime()).model_dump()
    for name, value in settings.items():
        owners = [owner for owner, kind in GROUPS.items() if name in kind.model_fields]
        data[group if group in owners else owners[0]][name] = value
    return Runtime.model_validate(data)
