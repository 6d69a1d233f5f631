"""What a run shows in the Prefect UI and at a terminal: names, progress, its log, and the page of what it came to."""
