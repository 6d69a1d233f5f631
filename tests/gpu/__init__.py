"""Whether the model half is right on a GPU: `pytest -m gpu`. Without one they are skipped."""
