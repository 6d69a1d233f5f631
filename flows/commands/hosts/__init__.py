"""Runs on many hosts.

scripts.py  `gristmill hosts`, which prints the job file or commands, and `gristmill join`
on_ray.py   a run on the hosts of a Ray cluster
"""

from __future__ import annotations

from flows.commands.hosts.scripts import Cluster, join, show_hosts, written

__all__ = ["Cluster", "join", "show_hosts", "written"]
