"""Thresholds and stop words by language: their checks, those of scripts without spaces, and those of FineWeb-2."""
