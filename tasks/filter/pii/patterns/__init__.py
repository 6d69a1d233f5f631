"""Personal data that has a form: compiled candidate scan, then Presidio's recognisers around each candidate."""
