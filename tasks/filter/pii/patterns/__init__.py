"""Personal data with a fixed form: a compiled scan for candidates, then Presidio's recognisers around each."""
