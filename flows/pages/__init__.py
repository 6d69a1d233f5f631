"""A run's output in the Prefect UI and at a terminal: names, progress, its log, and its report page."""
