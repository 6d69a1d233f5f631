"""Words: cut at white space and at letters of scripts without spaces, or tokens of spaCy."""
