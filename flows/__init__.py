"""When and in which order. Thin: no parsing, no tensors."""
