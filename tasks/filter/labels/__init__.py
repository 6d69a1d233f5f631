"""Labelled text from one's own corpus: a sample of pieces, the file of labels, an endpoint that labels, agreement."""
