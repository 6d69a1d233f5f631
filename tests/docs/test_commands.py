"""The commands and the profiles in the documentation: every one is understood, and what is cheap runs."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from flows import cli, options
from flows.session import session_of
from profiles.load import load, read_settings
from profiles.schema import Profile
from storage import refs
from storage.errors import GristmillError
from storage.store import Store
from tasks.export.release_folder import save, sign_folder
from tasks.serve.config import ServeConfig
from tasks.serve.guards import GuardsConfig
from tasks.stage.decorator import STAGES
from tests.docs.pages import Block, Command, blocks, commands
from tests.flows.commands.test_cli import publish

UsageError = typer.BadParameter.__base__ or Exception  # which typer does not export
CHEAP = {"plan", "why", "profile", "store", "release", "dependencies"}  # of the commands: those that make nothing
COMMANDS = list(commands("gristmill"))
SERVING = "serving.md"  # its settings are those of a server
SNIPPETS = [block for block in blocks("yaml") if block.page.name != SERVING]
STORED = ("tokenizer", "pretrain", "evaluate", "export")


def of_block(block: Block) -> str:
    return block.name


@pytest.fixture(scope="module")
def program() -> Any:
    """The command as click sees it, its groups included."""
    cli._add_groups(cli.GROUPS)
    return typer.main.get_command(cli.app)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as the current one, with the files and the secret that snippets name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lists").mkdir()
    for name in ("hosts", "urls", "words-in-addresses", "soft-words", "bad-words-en", "bad-words-de"):
        (tmp_path / "lists" / f"{name}.txt").write_text("entry\n")
    (tmp_path / "rewards.py").write_text("def close(prompts, answers, rows):\n    return [0.0] * len(answers)\n")
    (tmp_path / "rubric.txt").write_text("An answer is short.\n")
    monkeypatch.setenv("GRISTMILL_SALT", "a salt for tests")
    return tmp_path


def read_profile(block: Block, folder: Path) -> Profile:
    """The profile in a block, which is written to `folder` by the name in its first line; a fragment extends `tiny`."""
    title = block.text.splitlines()[0].removeprefix("# ")
    file = folder / (title if title.endswith(".yaml") else "fragment.yaml")
    data = yaml.safe_load(block.text)
    file.write_text(yaml.safe_dump(data if "extends" in data else {"extends": "tiny", "name": "fragment", **data}))
    return load(str(file))


ROWS = {
    "documents": {"text": "A river."},
    "instructions": {"prompt": "Name a river.", "completion": "The Danube."},
    "preferences": {"prompt": "Name a river.", "chosen": "The Danube.", "rejected": "No."},
    "labelled": {"prompt": "Name a river.", "completion": "The Danube.", "label": True},
}


def write_sources(profile: Profile, folder: Path) -> None:
    """A file for each that a profile's sources name, with a row of its role where it is read as lines."""
    for source in profile.download.sources:
        for path in getattr(source, "paths", ()):
            file = folder / path.replace("**", "some").replace("*", "one")
            file.parent.mkdir(parents=True, exist_ok=True)
            row = json.dumps(ROWS[source.role]).encode() + b"\n"  # type: ignore[union-attr]
            file.write_bytes(gzip.compress(row) if file.suffix == ".gz" else row)


def fill_store(url: str) -> None:
    """Two versions of some artifacts of `tiny`."""
    for number in (1, 2):
        for stage in STORED:
            publish(Store(url), stage, {"file": b"bytes"}, number=number)


def sign_release(folder: Path) -> None:
    """A release of `tiny` as a signed folder, with the key and the file of signers where the pages have them."""
    key = folder / "~" / ".ssh" / "id_ed25519"
    key.parent.mkdir(parents=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    (folder / "allowed_signers").write_text(f"me@example.org {key.with_suffix('.pub').read_text()}")
    store = Store(options.DEFAULT_STORE)
    save(store.get(refs.resolve(store, "tiny/export")), folder / "my-model", {})
    sign_folder(folder / "my-model", key)


@pytest.mark.parametrize("block", SNIPPETS, ids=of_block)
def test_every_profile_is_accepted_and_can_be_run_so(block: Block, folder: Path) -> None:
    profile = read_profile(block, folder)
    for name in profile.stage_names:
        STAGES[name].check_runtime(getattr(profile, name), profile.runtime)


def test_the_settings_of_a_server_are_accepted(folder: Path) -> None:
    settings, policy = (block.text for block in blocks("yaml") if block.page.name == SERVING)
    for kind, text in ((ServeConfig, settings), (GuardsConfig, policy)):
        (folder / "settings.yaml").write_text(text)
        assert read_settings(kind, folder / "settings.yaml") != kind()


def parse(program: Any, words: list[str]) -> tuple[str, dict[str, Any]]:
    """The name of the (sub)command and its parameters. Raises UsageError for what it does not know."""
    command = program
    path: list[str] = []
    while hasattr(command, "commands"):
        if command.invoke_without_command and path and not (words and words[0] in command.commands):
            break
        if words and words[0] not in command.commands:
            words = [*getattr(command, "unnamed", ()), *words]
        name, *words = words
        if name not in command.commands:
            raise UsageError(f"There is no command {' '.join([*path, name])}.")
        command = command.commands[name]
        path.append(name)
    return " ".join(path), command.make_context(path[-1], words).params


def named_by(command: Command) -> list[Block]:
    """The profiles of its page that a command names, each after those that it extends."""
    titled = {
        block.text.splitlines()[0].removeprefix("# "): block for block in SNIPPETS if block.page == command.block.page
    }
    named: list[Block] = []
    text = " ".join(command.words)
    while found := [title for title in titled if title.endswith(".yaml") and title in text]:
        named = [*(titled.pop(title) for title in found), *named]
        text = " ".join(block.text for block in named)
    return named


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_is_understood_and_runs_if_it_is_cheap(command: Command, program: Any, folder: Path) -> None:
    for block in named_by(command):
        write_sources(read_profile(block, folder), folder)
    words = list(command.words[1:])
    words = words[: words.index(">")] if ">" in words else words
    path, given = parse(program, words)
    if given.get("profile") is not None:
        refresh = given["refresh"] if isinstance(given.get("refresh"), list) else ()
        profile = load(given["profile"], options.settings(given["overrides"], given.get("store")))
        if not command.block.needs:
            session_of(profile, given.get("name") or given.get("to"), refresh)
    if path.split()[0] in CHEAP and not command.block.needs:
        if path.startswith(("store ", "release ")):
            fill_store(given.get("store") or options.DEFAULT_STORE)
        if path in ("release sign", "release verify", "release push"):
            if shutil.which("ssh-keygen") is None:
                pytest.skip("needs ssh-keygen")
            sign_release(folder)
        done = CliRunner().invoke(cli.app, words)
        assert done.exit_code == 0, f"{done.output}{done.exception}"


def test_every_command_of_the_program_is_documented(program: Any) -> None:
    told = {command.words[1] for command in COMMANDS if len(command.words) > 1}
    assert told == set(program.commands)


def test_what_does_not_exist_is_found(program: Any) -> None:
    for words in (["run", "tiny", "--forec"], ["stroe", "ls"], ["store", "list"], ["plan", "a", "b"]):
        with pytest.raises(UsageError):
            parse(program, words)
    with pytest.raises(GristmillError):
        session_of(load("tiny"), "pretrian")
