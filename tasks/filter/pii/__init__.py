"""Personal data as signals: patterns, names, and their replacements."""
