"""The sandbox's own processes. They import the standard library alone, so that they start fast and hold no secrets."""
