"""The output of `gristmill store ls` and `gristmill store show`."""
