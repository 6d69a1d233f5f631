"""Experiment trackers, for reports of trainings and of whole runs."""
