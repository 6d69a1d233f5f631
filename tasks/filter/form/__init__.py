"""Form of texts: the signals of Gopher, C4 and FineWeb, measured in one pass over the bytes."""
