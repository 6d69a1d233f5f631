"""Personal data as signals: patterns, names, and what is put in their place."""
