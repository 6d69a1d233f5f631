"""The peers' own virtual environments, beside `.venv`: their pins differ from the project's, and litgpt's from
datatrove's."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
INSTALL_SECONDS = 600


@dataclass(frozen=True)
class PeerEnvironment:
    """The environment of benchmarks/requirements-NAME.txt."""

    name: str

    @property
    def folder(self) -> Path:
        """Where it stands."""
        return HERE / f".{self.name}"

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def requirements(self) -> Path:
        """What is installed in it."""
        return HERE / f"requirements-{self.name}.txt"

    def ensure(self) -> dict[str, str]:
        """The installed packages with their versions; what is missing is installed first, as far as that succeeds."""
        stamp = self.folder / "installed.txt"
        if not stamp.exists() or stamp.read_text() != self.requirements.read_text():
            print(f"Installing {self.requirements.name} into {self.folder.name} …", file=sys.stderr)
            subprocess.run([sys.executable, "-m", "venv", str(self.folder)], check=True)
            (self.folder / ".gitignore").write_text("*\n")  # neither git nor ruff shall look into it
            if not self._install("--requirement", str(self.requirements)):
                # One that can't be had must not take the others with it
                for requirement in self._pins():
                    self._install("--constraint", str(self.requirements), requirement)
            stamp.write_text(self.requirements.read_text())
        command = [str(self.python), "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return {row["name"].lower(): row["version"] for row in json.loads(done.stdout)}

    def _install(self, *arguments: str) -> bool:
        command = [str(self.python), "-m", "pip", "install", "-qq", "--disable-pip-version-check", *arguments]
        try:
            return subprocess.run(command, timeout=INSTALL_SECONDS, check=False).returncode == 0
        except subprocess.TimeoutExpired:
            return False

    def _pins(self) -> list[str]:
        lines = (line.partition("#")[0].strip() for line in self.requirements.read_text().splitlines())
        return [line for line in lines if line]


PEERS = PeerEnvironment("peers")
LITGPT = PeerEnvironment("litgpt")
