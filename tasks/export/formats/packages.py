"""Packages that a format needs, and that not every installation has."""

from __future__ import annotations

import importlib.util


def missing(*packages: str) -> str | None:
    """A sentence on those of some packages that are not installed, which the extra `export` brings; None for none."""
    lacking = [name.replace("_", "-") for name in packages if importlib.util.find_spec(name) is None]
    return f"{', '.join(lacking)} not installed: pip install 'gristmill[export]'." if lacking else None
