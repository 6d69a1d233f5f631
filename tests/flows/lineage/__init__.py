"""Tests of flows/lineage."""
