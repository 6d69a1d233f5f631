"""Formats of a release, a file each."""
