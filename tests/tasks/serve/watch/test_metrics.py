"""The page for Prometheus: vLLM's names, bounded labels, the same counts by every route, and right percentiles."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.serve.watch import Watch
from tasks.serve.watch.recent import Recent, percentiles
from tests.tasks.serve.watch.report import CHAT, RELEASE, Found, ask, samples, value, watching

MODEL = {"model_name": "tiny"}
ROUTES = (CHAT, "/v1/completions", "/v1/messages")


def test_the_page_has_the_names_and_labels_of_vllm(tmp_path: Path) -> None:
    with watching(tmp_path) as watch:
        watch.load("tiny", running=3, waiting=2)
        ask(watch)
        assert value(watch, "vllm:num_requests_running", **MODEL) == 3
        assert value(watch, "vllm:num_requests_waiting", **MODEL) == 2
        assert value(watch, "vllm:prompt_tokens_total", **MODEL) == 7
        assert value(watch, "vllm:generation_tokens_total", **MODEL) == 5
        assert value(watch, "vllm:request_success_total", finished_reason="stop", **MODEL) == 1
        for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time"):
            assert value(watch, f"vllm:{name}_seconds_count", **MODEL) == 1
        assert value(watch, "vllm:inter_token_latency_seconds_count", **MODEL) == 4
        assert value(watch, "vllm:time_per_output_token_seconds_count", **MODEL) == 4
        assert value(watch, "vllm:request_params_max_tokens_bucket", le="100.0", **MODEL) == 1
        assert value(watch, "vllm:request_params_max_tokens_bucket", le="50.0", **MODEL) == 0


def test_the_buckets_of_the_first_token_are_those_of_vllm(tmp_path: Path) -> None:
    with watching(tmp_path) as watch:
        found = {
            dict(labels)["le"] for name, labels in samples(watch) if name == "vllm:time_to_first_token_seconds_bucket"
        }
    assert len(found) == 23
    assert {"0.001", "0.25", "2560.0", "+Inf"} < found


def test_ours_stand_beside_them(tmp_path: Path) -> None:
    with watching(tmp_path) as watch:
        watch.ready("tiny", True)
        watch.restarted("tiny")
        ask(watch, findings=(Found("email", count=2), Found("card", "refuse", "input")))
        assert value(watch, "gristmill_requests_total", route=CHAT, status="200") == 1
        assert value(watch, "gristmill_cost_usd_total", key="alice") == 0.25
        assert value(watch, "gristmill_guard_verdicts_total", rule="email", direction="output", action="mask") == 2
        assert value(watch, "gristmill_guard_verdicts_total", rule="card", direction="input", action="refuse") == 1
        assert value(watch, "gristmill_ready", **MODEL) == 1
        assert value(watch, "gristmill_engine_restarts_total", **MODEL) == 1
        assert value(watch, "gristmill_queue_seconds_count", **MODEL) == 1
        assert value(watch, "gristmill_release_info", digest=RELEASE["digest"], ref=RELEASE["ref"], **MODEL) == 1


def test_a_swap_names_the_new_release_only(tmp_path: Path) -> None:
    with watching(tmp_path) as watch:
        watch.serves("tiny", {"digest": "new"})
        releases = [dict(labels) for name, labels in samples(watch) if name == "gristmill_release_info"]
        assert releases == [{"model_name": "tiny", "digest": "new"}]
        assert watch.status()["models"]["tiny"]["release"] == {"digest": "new"}


def moved(watch: Watch, route: str, streamed: bool) -> dict[object, float]:
    """By how much each counter moves for a request, apart from the route's own."""
    before = samples(watch)
    ask(watch, route=route, streamed=streamed, findings=(Found("email"),))
    return {
        (name, labels): now - before.get((name, labels), 0.0)
        for (name, labels), now in samples(watch).items()
        if name.endswith(("_total", "_count"))
        and name != "gristmill_requests_total"
        and now != before.get((name, labels))
    }


def test_the_same_request_by_any_route_moves_the_same_counters_by_the_same_amount(tmp_path: Path) -> None:
    with watching(tmp_path) as watch:
        all_moved = [moved(watch, route, streamed) for route in ROUTES for streamed in (True, False)]
        assert len(all_moved[0]) >= 12
        assert all(one == all_moved[0] for one in all_moved)
        assert {value(watch, "gristmill_requests_total", route=route, status="200") for route in ROUTES} == {2.0}


def test_refusals_and_aborts_are_not_successes_and_not_latencies(tmp_path: Path) -> None:
    with watching(tmp_path) as watch:
        watch.request(request_id="a", route=CHAT).end(status=401, finish=None)
        ask(watch, status=499, finish="stop", completion_tokens=2, client_gone=True)
        ask(watch, finish="error")
        assert value(watch, "gristmill_requests_total", route=CHAT, status="401") == 1
        assert value(watch, "vllm:request_success_total", finished_reason="abort", **MODEL) == 1
        assert value(watch, "vllm:request_success_total", finished_reason="error", **MODEL) == 1
        assert value(watch, "vllm:e2e_request_latency_seconds_count", **MODEL) == 0
        assert value(watch, "vllm:generation_tokens_total", **MODEL) == 7, "what was sent is counted"


def test_a_request_ends_once_and_by_itself(tmp_path: Path) -> None:
    with watching(tmp_path) as watch:
        ask(watch).end(status=500, finish="error")
        with pytest.raises(ValueError, match="broken"), watch.request(request_id="b", route=CHAT, model="tiny"):
            raise ValueError("broken")
        with pytest.raises(asyncio.CancelledError), watch.request(request_id="c", route=CHAT, model="tiny"):
            raise asyncio.CancelledError
        assert dict(watch.statuses) == {"200": 1, "500": 1, "499": 1}


def test_several_tokens_at_once_share_their_time(tmp_path: Path) -> None:
    with watching(tmp_path) as watch:
        observed = watch.request(request_id="a", route=CHAT, model="tiny")
        observed.first_token()
        observed.tokens(3)  # no time since the first token, which is one of them
        observed.tokens(4)
        observed.tokens(0)
        assert value(watch, "vllm:time_to_first_token_seconds_count", **MODEL) == 1
        assert value(watch, "vllm:inter_token_latency_seconds_count", **MODEL) == 4
        assert watch.status()["latency"]["token"]["count"] == 4


def test_what_clients_name_adds_no_series(tmp_path: Path) -> None:
    with watching(tmp_path, metrics={"keys": 3}) as watch:
        for number in range(200):
            ask(watch, number, key=f"key{number}", route=f"/{number}", model=f"model{number}", finish=f"finish{number}")
        keys = {dict(labels)["key"] for name, labels in samples(watch) if name == "gristmill_cost_usd_total"}
        models = {dict(labels).get("model_name") for _, labels in samples(watch)}
        routes = {dict(labels)["route"] for name, labels in samples(watch) if name == "gristmill_requests_total"}
        assert keys == {"key0", "key1", "key2", "other"}
        assert models == {None, "tiny", "other"}
        assert len(routes) == 65
        assert value(watch, "gristmill_cost_usd_total", key="other") == 197 * 0.25
        assert value(watch, "vllm:request_success_total", model_name="other", finished_reason="other") == 200
        assert len(watch.spent) == 4


@given(st.lists(st.floats(2e-6, 9e4), min_size=1, max_size=300))
def test_percentiles_are_those_of_numpy_within_one_percent(durations: list[float]) -> None:
    recent = Recent(300)
    for number, seconds in enumerate(durations):
        recent.add(seconds, now=1000 + number / 10)
    found = percentiles([recent.counts(1000 + len(durations) / 10)])
    assert found["count"] == len(durations)
    for name, quantile in (("p50", 50), ("p95", 95), ("p99", 99)):
        exact = np.percentile(durations, quantile, method="inverted_cdf")
        assert found[name] == pytest.approx(exact, rel=0.0101)


def test_percentiles_forget_what_is_older_than_the_window() -> None:
    recent = Recent(60)
    recent.add(5.0, now=1000, count=100)
    recent.add(1.0, now=1058)
    assert percentiles([recent.counts(1059)])["count"] == 101
    assert percentiles([recent.counts(1061)])["p99"] == pytest.approx(1.0, rel=0.01)
    assert percentiles([recent.counts(2000)]) == {"count": 0, "p50": None, "p95": None, "p99": None}


def test_percentiles_of_two_models_are_those_of_all_requests() -> None:
    one, two = Recent(60), Recent(60)
    for number in range(100):
        (one if number % 3 else two).add(0.001 * (number + 1), now=10)
    assert percentiles([one.counts(10), two.counts(10)])["p95"] == pytest.approx(0.095, rel=0.01)


def held() -> int:
    """Bytes that the code of metrics holds, whatever other threads of this process do."""
    gc.collect()
    files = [tracemalloc.Filter(True, f"*/{name}/*") for name in ("tasks/serve/watch", "prometheus_client")]
    return sum(one.size for one in tracemalloc.take_snapshot().filter_traces(files).statistics("filename"))


@pytest.mark.parametrize("requests", [6_000, pytest.param(100_000, marks=pytest.mark.soak)])
def test_memory_does_not_grow_with_requests(tmp_path: Path, requests: int) -> None:
    tracemalloc.start()
    try:
        with watching(tmp_path, audit={"enabled": False}) as watch:  # whose lines wait for a thread
            for number in range(2_000):
                ask(watch, number, key=f"key{number}", model=f"model{number}", route=f"/{number}")
            before = held()
            for number in range(2_000, requests):
                ask(watch, number, key=f"key{number}", model=f"model{number}", route=f"/{number}")
            assert held() - before < 100_000
            assert watch.status()["requests"] == {"200": requests}
    finally:
        tracemalloc.stop()
