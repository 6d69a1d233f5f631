"""A run of pretraining beside peers' loops, and beside what the machine can multiply."""
