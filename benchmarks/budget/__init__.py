"""Where the CPU time of text to token shards goes, by phase and beside what it would take at the speed of one core."""
