"""A whole matrix on real text: what arms share is made once, and trainings go on side by side."""

from __future__ import annotations

import json
from pathlib import Path

from storage import refs
from storage.store import Store
from tests.flows.commands.test_cli import gristmill
from tests.flows.small import SMALL
from tests.pipeline.runs import finish, start

ASKED = ("--vary", "filter.language=null", "--seeds", "2")


def test_a_matrix_shares_what_it_can_and_compares_its_models(tmp_path: Path) -> None:
    store = tmp_path / "store"
    sets = (*SMALL, "tokenize.validation_share=0.4", "runtime.compute.threads=1")

    def planned() -> str:
        given = (f"--set={one}" for one in (*sets, f"runtime.store={store}"))
        return gristmill("ablate", "smoke", *ASKED, "--plan", *given).stdout

    before = planned()
    assert "12 of 12 artifacts to make" in before
    assert "The noise of seeds isn't known yet" in before
    said = finish(start(store, *ASKED, "--jobs", "2", sets=sets, command="ablate"))
    opened = Store(str(store))
    made = [location.partition("/")[0] for location in opened.locations()]
    counts = {stage: made.count(stage) for stage in ("download", "dedup", "filter", "tokenize", "pretrain")}
    assert counts == {"download": 1, "dedup": 1, "filter": 2, "tokenize": 2, "pretrain": 4}
    assert {"smoke/ablate", "smoke/pretrain", "smoke-filter-language-null-seed-1/pretrain"} <= set(refs.names(opened))
    (found,) = (json.loads(path.read_text()) for path in (store / "artifacts/ablate").glob("*/effects.json"))
    assert [arm["name"] for arm in found["arms"]] == ["smoke", "filter.language=null"]
    assert {"held-out text", "arc_easy: right answers"} <= {one["name"] for one in found["measures"]}
    assert "Result: " in said
    after = planned()
    assert "Nothing to make" in after
    assert "Seeds that a difference needs" in after
