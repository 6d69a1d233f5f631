"""What the subcommands of `gristmill` do, a module a subject, imported when used."""
