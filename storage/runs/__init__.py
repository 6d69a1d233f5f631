"""Records of runs: their requests, their results, and whether a silent run has ended."""
