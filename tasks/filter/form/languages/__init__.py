"""Thresholds and stop words of single languages: checked, ready for scripts without spaces, read from FineWeb-2."""
