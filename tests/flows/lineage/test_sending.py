"""Events reach a catalogue in order, and a catalogue that misbehaves neither ends nor holds up a run."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from flows.lineage import sending
from flows.lineage.sending import Sender, check
from storage.errors import ConfigError
from tasks.children.launchers import free_port
from tasks.stage.runtime import OpenLineage
from tests.flows.lineage.receiver import receiving

KEY = "a-key-of-some-length"


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openlineage", reason="needs the extra openlineage")
    monkeypatch.setattr(sending, "ANSWER_SECONDS", 0.5)
    monkeypatch.setenv("CATALOGUE_API_KEY", KEY)


def test_events_arrive_in_order_below_the_path_of_the_url_and_with_the_key(tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login other password other-password\n")
    file = tmp_path / "events.jsonl"
    with receiving() as catalogue, pytest.MonkeyPatch.context() as patched:
        patched.setenv("NETRC", str(tmp_path / ".netrc"))
        sender = Sender(OpenLineage(url=catalogue.url, api_key_env="CATALOGUE_API_KEY", file=str(file)))
        for number in range(20):
            sender.send({"number": number})
        sender.close()
        assert sender.problem == ""
        assert [event["number"] for event in catalogue.events] == [*range(20)]
        method, path, headers, _ = catalogue.requests[0]
    assert (method, path, headers["Authorization"]) == ("POST", "/catalogue/api/v1/lineage", f"Bearer {KEY}")
    assert file.read_text().splitlines()[:2] == ['{"number": 0}', '{"number": 1}']


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("500", "answered with errors"),
        ("503", "answered with errors"),
        ("401", "answered 401 Unauthorized"),
        ("302", "redirects"),
        ("garbage", "gave no HTTP answer"),
        ("page", "no catalogue"),
        ("slow", "did not answer"),
        ("away", "refused the connection"),
    ],
)
def test_a_catalogue_that_misbehaves_is_named_and_never_waited_for(mode: str, said: str) -> None:
    with receiving(mode) as catalogue:
        url = f"http://127.0.0.1:{free_port()}" if mode == "away" else catalogue.url
        sender = Sender(OpenLineage(url=url, api_key_env="CATALOGUE_API_KEY"))
        began = time.monotonic()
        for number in range(3):
            sender.send({"number": number})
        assert time.monotonic() - began < 0.3
        sender.close()
        assert time.monotonic() - began < sending.FAILING_SECONDS + 1.5
        assert said in sender.problem
        assert url in sender.problem
        assert KEY not in sender.problem
        assert not [request for request in catalogue.requests if request[0] == "GET"], "a redirect was followed"


def test_settings_that_can_not_work_are_refused_before_anything_starts(tmp_path: Path) -> None:
    for settings, said in (
        (OpenLineage(url="http://catalogue", api_key_env="ANOTHER_API_KEY"), "ANOTHER_API_KEY is not set"),
        (OpenLineage(file=str(tmp_path / "nowhere" / "events.jsonl")), "can't be written: No such file"),
        (OpenLineage(file=str(tmp_path)), "can't be written: Is a directory"),
    ):
        with pytest.raises(ConfigError, match=said):
            check(settings)
    for wrong, said in (({}, "where the events go"), ({"file": "x", "api_key_env": "A_TOKEN"}, "for `url`")):
        with pytest.raises(ValueError, match=said):
            OpenLineage(**wrong)
    OpenLineage.model_validate_json(OpenLineage(file="x").model_dump_json())
