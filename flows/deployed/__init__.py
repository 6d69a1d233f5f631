"""Deployments on a Prefect server: their form, how their runs end, and the flows that exist only there."""
