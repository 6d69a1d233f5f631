"""Who may speak to a Prefect server that Gristmill starts: whoever has its password, and no page of another site."""
