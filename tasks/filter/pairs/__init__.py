"""Personal data in instruction and preference pairs, which no document stage reads."""
