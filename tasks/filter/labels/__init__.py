"""Labelled text from the user's corpus: a sample of pieces, the file of labels, an endpoint that labels, agreement."""
