"""Environment variables that keep libraries from sending anything anywhere and from advertising themselves.

Nothing leaves the machine unless a profile says so. Variables that a user has set are kept.
"""

from __future__ import annotations

import os

NO_TELEMETRY = {"DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "HF_HUB_DISABLE_TELEMETRY": "1"}
ENVIRONMENT = {
    **NO_TELEMETRY,
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "PREFECT_SERVER_UI_V2_ENABLED": "false",  # the V2 interface makes the browser call an analytics host
    "PREFECT_LOGGING_LEVEL": "WARNING",
    "TOKENIZERS_PARALLELISM": "false",
}


def keep_quiet() -> None:
    """Set the variables. Call it before any library reads its environment."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
