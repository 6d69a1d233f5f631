"""`gristmill runs`: the runs that a store remembers, one of them in full, and what differs between two."""

from flows.commands.runs.app import app

__all__ = ["app"]
