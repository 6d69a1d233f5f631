"""The record that a run leaves in the store.

recorder.py  writes it while the run goes on
figures.py   its numbers, from manifests
settings.py  the settings that set an artifact apart
track.py     sends it to experiment trackers
"""
