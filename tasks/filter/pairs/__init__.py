"""Personal data in instruction and preference pairs, which document stages don't read."""
