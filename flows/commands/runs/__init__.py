"""`gristmill runs`: lists a store's runs, shows one in full, and compares two."""

from flows.commands.runs.app import app

__all__ = ["app"]
