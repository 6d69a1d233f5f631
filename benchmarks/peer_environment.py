"""The peers' own virtual environment: their pins differ from the project's, so it stands beside `.venv`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDER = HERE / ".peers"
PYTHON = FOLDER / "bin" / "python"
REQUIREMENTS = HERE / "requirements-peers.txt"
INSTALL_SECONDS = 600


def ensure() -> dict[str, str]:
    """The installed packages with their versions; what is missing is installed first, as far as that succeeds."""
    stamp = FOLDER / "installed.txt"
    if not stamp.exists() or stamp.read_text() != REQUIREMENTS.read_text():
        print(f"Installing {REQUIREMENTS.name} into {FOLDER.name} …", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(FOLDER)], check=True)
        (FOLDER / ".gitignore").write_text("*\n")  # neither git nor ruff shall look into it
        if not _install("--requirement", str(REQUIREMENTS)):
            # One that can't be had must not take the others with it
            for requirement in _pins():
                _install("--constraint", str(REQUIREMENTS), requirement)
        stamp.write_text(REQUIREMENTS.read_text())
    command = [str(PYTHON), "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {row["name"].lower(): row["version"] for row in json.loads(done.stdout)}


def _install(*arguments: str) -> bool:
    command = [str(PYTHON), "-m", "pip", "install", "-qq", "--disable-pip-version-check", *arguments]
    try:
        return subprocess.run(command, timeout=INSTALL_SECONDS, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def _pins() -> list[str]:
    lines = (line.partition("#")[0].strip() for line in REQUIREMENTS.read_text().splitlines())
    return [line for line in lines if line]
