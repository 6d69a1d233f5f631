"""Drills of a training on two hosts, which are network namespaces of this machine: `python -m tests.hosts`."""
