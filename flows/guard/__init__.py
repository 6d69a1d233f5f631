"""Guards Prefect servers that Gristmill starts: requires their password, and refuses pages of other sites."""
