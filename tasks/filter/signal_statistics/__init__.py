"""A table of measures by language, and the thresholds that it suggests."""
