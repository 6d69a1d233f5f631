"""`python -m tests.tasks.stage.pin` writes pins.json anew, once the versions are right. See test_versions.py."""

from __future__ import annotations

import json

from tests.tasks.stage.test_versions import PINS, current

if __name__ == "__main__":
    PINS.write_text(json.dumps(current(), indent=2) + "\n")
