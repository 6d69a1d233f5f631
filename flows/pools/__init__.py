"""Stages on other machines: a run sends them to Prefect's work pools, and takes their artifacts from the store."""
