"""What a word is: what white space separates and letters of scripts without spaces, or the tokens of spaCy."""
