"""Runs on many hosts.

printed.py  `gristmill hosts`, which prints what starts one, and `gristmill join`
on_ray.py   a run on the hosts of a Ray cluster
"""

from __future__ import annotations

from flows.commands.hosts.printed import Cluster, join, show_hosts, written

__all__ = ["Cluster", "join", "show_hosts", "written"]
