"""Language identification, of documents and of their parts."""
