"""The filter's families beside their peers. `python -m benchmarks.filter` runs all of them; see `__main__.py`."""
