"""Near-duplicates: candidate pairs by MinHash bands or SimHash blocks, verified before anything is removed."""
