"""`python -m flows.guard PORT [FILE]`: Prefect's server on 127.0.0.1, behind the guard, with settings from the
environment. FILE holds the password: the sign-in page names it."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

# Collect rarely: imported modules stay, and searching them for garbage takes a fifth of the start
gc.set_threshold(50_000)

import uvicorn  # noqa: E402

from flows.guard.middleware import Guard  # noqa: E402
from flows.guard.password import CODE, SERVER  # noqa: E402
from flows.guard.sign_in import page  # noqa: E402


def main(port: int, kept_in: str | None) -> None:
    """Serve until a signal ends it."""
    import prefect

    # Prefect's second interface has the browser call an analytics host, and its first links to the second. No setting
    # switches an interface off, only its files can be missing
    prefect.__ui_v2_static_path__ = Path(os.devnull, "none")
    from prefect.server.api.server import create_app
    from prefect.settings import get_current_settings

    settings = get_current_settings().server
    sign_in = page(kept_in) if settings.ui.enabled else None
    app = Guard(create_app(final=True), os.environ[SERVER], sign_in, os.environ.pop(CODE, None))
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=port,
        lifespan="on",
        log_level=settings.logging_level.lower(),
        timeout_keep_alive=settings.api.keepalive_timeout,
        ws_ping_interval=settings.api.websocket_ping_interval,
        ws_ping_timeout=settings.api.websocket_ping_timeout,
        proxy_headers=False,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
