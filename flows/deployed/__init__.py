"""What a Prefect server runs and shows: the form of a deployment, how its runs end, and flows that only it has."""
