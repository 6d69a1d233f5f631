"""Records of runs: what was asked for, what came of it, and whether a run that never said so has ended."""
