"""The subcommands of `gristmill`, one module a subject, imported when used."""
