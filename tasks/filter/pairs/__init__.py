"""Rules for instruction and preference pairs, which document stages don't read."""
