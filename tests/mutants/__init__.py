"""Defects that are planted on purpose, so that the tests are tested: does anything fail when the code is wrong?

A test that was made faster, or taken for superfluous, may notice less than before, and nobody sees it as long as all is
well. Each defect here is one that somebody could write: a last row that is dropped, a lock that is not taken, a mean
over batches in place of tokens. `python -m tests.mutants` plants them one by one in a copy of the checkout, and runs
the tests that must fail by each. One that nothing notices is a gap in the tests, to be closed before anything else.

They are texts that are replaced, not patches by line, so that they outlast changes around them; where such a text is no
longer there, `tests/test_mutants.py` says so at once.
"""
