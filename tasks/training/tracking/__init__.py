"""Experiment trackers, to which a training and a whole run can be reported."""
