"""Text repair: wrong encodings, control characters, hard-wrapped lines and superfluous white space."""
