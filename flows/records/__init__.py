"""What a run leaves of itself in the store: recorder.py writes its record, figures.py reads it out of manifests."""
