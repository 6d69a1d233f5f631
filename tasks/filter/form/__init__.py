"""Form: what the rules of Gopher, C4 and FineWeb look at, measured in one pass over the bytes."""
