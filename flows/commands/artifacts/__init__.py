"""What `gristmill store ls` and `gristmill store show` print."""
