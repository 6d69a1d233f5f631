"""Stages on other machines: a run gives them to Prefect's work pools, and takes what they make from the store."""
