"""How the stages are wired, and what those before the release have to say of it."""
