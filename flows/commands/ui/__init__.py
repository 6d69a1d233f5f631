"""`gristmill ui`: the server and workers that it starts and restarts, their health, and their end."""
