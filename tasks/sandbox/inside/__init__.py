"""The sandbox's own processes. They import only the standard library, so that they start fast and hold no secrets."""
