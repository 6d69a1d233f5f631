"""What each stage does: a module or a package a stage, named as in the diagram of `flows/pipeline.py`."""
