"""The pages say what is so: links resolve, the tree is the one on disk, the reference is the schema's."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from flows.commands.serve.start import reference as serving_reference
from flows.estimates.arithmetic import training_plan
from profiles.load import load
from profiles.reference import markdown
from storage.artifact import Artifact
from storage.units import duration, size_of
from tasks.export.formats import FORMATS
from tasks.stage.decorator import STAGES
from tests.docs.pages import PAGES, ROOT, anchors, blocks, commands, links

README = ROOT / "README.md"
MAX_README = 120  # lines
MAX_PICTURE = 300_000  # bytes


def of_page(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_the_readme_is_a_page_and_its_pictures_are_small() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= MAX_README
    for picture in (ROOT / "docs" / "images").iterdir():
        assert picture.stat().st_size <= MAX_PICTURE


@pytest.mark.parametrize("page", PAGES, ids=of_page)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in links(page):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_linked_from_the_readme() -> None:
    linked = {(ROOT / link).resolve() for link in links(README) if "://" not in link}
    assert set(PAGES) - {README} <= linked


def folders(parent: Path) -> set[str]:
    """Folders with modules or pages in them: no caches, no store, no build."""
    found = {path.parent for pattern in ("*/*.py", "*/*.md") for path in parent.glob(pattern)}
    return {folder.name for folder in found if not folder.name.startswith(".")}


def test_the_tree_is_the_one_on_disk() -> None:
    (tree,) = [block.text for block in blocks("") if block.page == README and block.text.startswith("gristmill/ ")]
    listed = [re.match(r"( *)(\w+)/ ", line) for line in tree.splitlines()]
    assert all(listed)
    assert {found[2] for found in listed if found and not found[1]} == folders(ROOT)
    assert {found[2] for found in listed if found and found[1]} == folders(ROOT / "tasks")


def test_the_reference_is_that_of_the_schema() -> None:
    committed = (ROOT / "docs" / "profiles.md").read_text(encoding="utf-8")
    assert committed == markdown(), "run `gristmill profile docs > docs/profiles.md`"
    committed = (ROOT / "docs" / "serving-settings.md").read_text(encoding="utf-8")
    assert committed == serving_reference(), "run `gristmill serve settings > docs/serving-settings.md`"


def test_the_tolerances_are_those_of_the_formats() -> None:
    page = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| `([\w-]+)` \| ((?:[\d.e-]+ \| ){4}[\w ]+) \|$", page, re.M))
    limits = {name: known.tolerance for name, known in FORMATS.items()}
    assert told == {
        name: f"{limit.max_divergence:g} | {limit.max_perplexity_increase:g} | {limit.max_runtime_divergence:g} | "
        f"{limit.max_weight_error:g} | " + ("equal" if limit.same_greedy else "may differ")
        for name, limit in limits.items()
    }


def test_the_plans_of_the_profiles_for_gpus_are_those_of_the_command() -> None:
    page = (ROOT / "docs" / "pretraining.md").read_text(encoding="utf-8")
    told = re.findall(r"^\| `([\w-]+)` \| `([\w-]+)` \| (.*) \|$", page, re.M)
    found = [(profile, device, " | ".join(planned(profile, device))) for profile, device, _ in told]
    assert {profile for profile, _, _ in told} == {"gpu-24gb", "gpu", "gpu-8x"}
    assert told == found, "take them from `gristmill plan PROFILE --device DEVICE`"


def planned(profile: str, device: str) -> tuple[str, ...]:
    """What `gristmill plan` says of a profile on a device, as cells of the table."""
    plan = training_plan(load(profile), device)
    assert plan.bill.hours is not None
    assert plan.bill.money is not None
    share = plan.memory.total / plan.device.memory
    return (
        f"{plan.parameters / 1e6:,.0f}M",
        f"{plan.tokens / 1e9:.3g}B",
        f"{size_of(plan.memory.total)}, {share:.0%} of {size_of(plan.device.memory)}",
        duration(3600 * plan.bill.hours),
        f"{plan.bill.money:,.0f}",
    )


def test_modules_that_are_run_and_files_that_are_named_exist() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for module in re.findall(r"python -m ((?:tests|benchmarks)[\w.]*)", text):
            assert find_spec(module), f"{of_page(page)}: {module}"
        for file in re.findall(r"`((?:tests|tasks|flows|profiles|storage|benchmarks)/[\w/]+\.\w+)`", text):
            assert (ROOT / file).exists() or "lowercase" in file, f"{of_page(page)}: {file}"


def test_make_has_the_targets_that_are_named() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M))
    named = {command.words[1] for command in commands("make")}
    named |= {found for page in PAGES for found in re.findall(r"`make (\w+)`", page.read_text(encoding="utf-8"))}
    assert named <= targets


def test_the_stage_that_is_taught_passes_its_tests(tmp_path: Path) -> None:
    taught = [block for block in blocks("python") if block.page.name == "write-a-stage.md"]
    assert len(taught) == 3
    names: dict[str, object] = {"__name__": "write_a_stage"}
    try:
        for block in taught:
            exec(compile("\n" * block.line + block.text, str(block.page), "exec"), names)
        assert isinstance(names["Artifact"], type)
        assert issubclass(names["Artifact"], Artifact)
        tests = {name: test for name, test in names.items() if name.startswith("test_")}
        assert len(tests) == 2
        for name, test in tests.items():
            assert callable(test)
            test(tmp_path / name)
    finally:
        STAGES.pop("lowercase", None)
