"""`gristmill ui`: what it starts, what it starts again, and what it says of their health."""
