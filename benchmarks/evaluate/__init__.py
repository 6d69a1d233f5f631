"""Evaluation beside lm-evaluation-harness."""
