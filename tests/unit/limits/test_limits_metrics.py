"""Metrics: what is counted comes out, in Prometheus's format, from any thread, and in bounded memory."""

import math
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poold.metrics import MAX_SERIES, SECONDS, Metrics
from tests.unit.limits.exposition import Family, parse

NAMES = {
    "claims_total": "counter",
    "claim_seconds": "histogram",
    "pool_machines": "gauge",
    "sandboxes": "gauge",
    "ledger_commit_seconds": "histogram",
    "ledger_replica_lag_seconds": "gauge",
    "ledger_replica_up": "gauge",
    "ledger_replica_syncs_total": "counter",
    "ledger_replica_sync_seconds": "histogram",
    "ledger_replica_restarts_total": "counter",
    "ledger_group_size": "histogram",
    "guest_call_seconds": "histogram",
    "http_requests_total": "counter",
    "tickets_refused_total": "counter",
    "http_request_seconds": "histogram",
    "vm_cpu_seconds_total": "counter",
    "vm_memory_bytes": "gauge",
    "pause_seconds": "histogram",
    "resume_seconds": "histogram",
    "hibernate_seconds": "histogram",
    "fetch_seconds": "histogram",
    "recovery_total": "counter",
    "host_pressure": "gauge",
    "egress_bytes_total": "counter",
    "egress_connections_total": "counter",
    "tasks": "gauge",
    "tasks_total": "counter",
    "task_first_event_seconds": "histogram",
    "task_events_total": "counter",
    "webhooks_total": "counter",
    "store_request_seconds": "histogram",
    "store_requests_total": "counter",
    "lease_epoch": "gauge",
    "lease_left_seconds": "gauge",
    "lease_renewals_total": "counter",
    "lease_fences_total": "counter",
    "drains_total": "counter",
    "draining": "gauge",
    "spot_notices_total": "counter",
    "takeover_troubles": "gauge",
    "takeover_missing": "gauge",
    "hosts_alive": "gauge",
}


def family(metrics: Metrics, name: str) -> Family:
    return parse(metrics.render())[f"poold_{name}"]


def values(metrics: Metrics, name: str) -> dict[tuple[str, ...], float]:
    """The samples of a family without histograms, by their label values."""
    return {tuple(v for _, v in labels): value for (_, labels), value in family(metrics, name).samples.items()}


def test_all_that_poold_measures_is_told_before_anything_happened() -> None:
    families = parse(Metrics().render())
    assert {name.removeprefix("poold_"): told.kind for name, told in families.items()} == NAMES
    assert all(told.help for told in families.values())
    assert all(told.samples == {} for told in families.values())
    assert all(hasattr(Metrics(), name) for name in NAMES)


def test_two_daemons_in_one_process_count_apart() -> None:
    one, other = Metrics(), Metrics()
    one.claims_total.add(outcome="warm")
    assert values(other, "claims_total") == {}


def test_a_counter_counts_by_label_and_does_not_go_back() -> None:
    metrics = Metrics()
    metrics.claims_total.add(outcome="warm")
    metrics.claims_total.add(2.5, outcome="warm")
    metrics.claims_total.add(0, outcome="refused")
    assert values(metrics, "claims_total") == {("warm",): 3.5, ("refused",): 0}
    for amount in (-1, math.nan):
        with pytest.raises(ValueError, match="only grows"):
            metrics.claims_total.add(amount, outcome="warm")
    assert values(metrics, "claims_total")[("warm",)] == 3.5


def test_labels_come_in_their_order_whatever_the_callers() -> None:
    metrics = Metrics()
    metrics.http_requests_total.add(status=200, method="GET", route="/v1/sandboxes")
    metrics.http_requests_total.add(route="/v1/sandboxes", method="GET", status="200")
    (sample,) = family(metrics, "http_requests_total").samples.items()
    labels = (("route", "/v1/sandboxes"), ("method", "GET"), ("status", "200"))
    assert sample == (("poold_http_requests_total", labels), 2)


@pytest.mark.parametrize("labels", [{}, {"outcom": "warm"}, {"outcome": "warm", "image": "x"}, {"outcome": "lost"}])
def test_a_label_or_value_that_does_not_exist_is_refused_and_counts_nothing(labels: dict[str, str]) -> None:
    metrics = Metrics()
    with pytest.raises(ValueError, match="poold_claims_total"):
        metrics.claims_total.add(**labels)
    assert values(metrics, "claims_total") == {}


@given(st.lists(st.text(max_size=40).filter(lambda text: text.isprintable() or "\n" in text), min_size=1, unique=True))
def test_any_text_comes_back_from_a_label(texts: list[str]) -> None:
    metrics = Metrics()
    for number, text in enumerate(texts):
        metrics.vm_memory_bytes.set(number, sandbox=text)
    assert values(metrics, "vm_memory_bytes") == {(text,): number for number, text in enumerate(texts)}


def test_the_characters_that_the_format_escapes_and_text_that_is_none() -> None:
    metrics = Metrics()
    for text in ('"', "\\", "\n", '\\"\\n', "a\\nb", "}", "} 1\nfake 2", "\udcff"):
        metrics.vm_memory_bytes.set(1, sandbox=text)
    told = {text for (text,) in values(metrics, "vm_memory_bytes")}
    assert told == {'"', "\\", "\n", '\\"\\n', "a\\nb", "}", "} 1\nfake 2", "\\udcff"}


@given(st.lists(st.floats(0, 100) | st.sampled_from([*SECONDS, math.inf]), min_size=1))
def test_a_histogram_counts_each_observation_once_and_up_to_its_bound(observed: list[float]) -> None:
    metrics = Metrics()
    for value in observed:
        metrics.http_request_seconds.observe(value, route="/x")
    samples = family(metrics, "http_request_seconds").samples
    for (name, labels), value in samples.items():
        if name.endswith("_bucket"):
            bound = float(dict(labels)["le"])
            assert value == sum(one <= bound for one in observed)
    route = (("route", "/x"),)
    assert samples["poold_http_request_seconds_count", route] == len(observed)
    assert samples["poold_http_request_seconds_sum", route] == pytest.approx(sum(observed))


@given(st.floats())
def test_any_number_can_be_read_back(number: float) -> None:
    metrics = Metrics()
    metrics.vm_memory_bytes.set(number, sandbox="x")
    told = values(metrics, "vm_memory_bytes")[("x",)]
    assert told == number or (math.isnan(told) and math.isnan(number))


def test_a_gauge_is_what_was_set_last_until_it_is_forgotten() -> None:
    metrics = Metrics()
    metrics.host_pressure.set(1, what="memory")
    metrics.host_pressure.set(0, what="memory")
    assert values(metrics, "host_pressure") == {("memory",): 0}
    metrics.host_pressure.forget(what="memory")
    metrics.host_pressure.forget(what="memory")
    assert values(metrics, "host_pressure") == {}


def test_what_is_asked_for_at_a_scrape_is_what_there_is_then() -> None:
    metrics, now = Metrics(), {("running",): 2.0}
    metrics.sandboxes.read_from(lambda: now)
    metrics.vm_cpu_seconds_total.read_from(lambda: {("sb-1",): 1.5})
    assert values(metrics, "sandboxes") == {("running",): 2}
    now = {("paused",): 1.0}
    assert values(metrics, "sandboxes") == {("paused",): 1}
    assert values(metrics, "vm_cpu_seconds_total") == {("sb-1",): 1.5}


def test_what_is_asked_for_may_itself_be_measured() -> None:
    """A source is called without the lock: otherwise this would wait for itself."""
    metrics = Metrics()

    def ask() -> dict[tuple[str, ...], float]:
        metrics.guest_call_seconds.observe(0.01)
        return {("running",): 1.0}

    metrics.sandboxes.read_from(ask)
    assert values(metrics, "sandboxes") == {("running",): 1}


def test_a_source_that_tells_of_labels_that_do_not_exist_is_a_mistake_that_shows() -> None:
    metrics = Metrics()
    metrics.pool_machines.read_from(lambda: {("minimal", "lukewarm"): 1})
    with pytest.raises(ValueError, match="lukewarm"):
        metrics.render()


def test_names_from_outside_cannot_fill_the_memory() -> None:
    metrics = Metrics()
    for number in range(3 * MAX_SERIES):
        metrics.http_requests_total.add(route=f"/{number}", method="GET" * 1000, status=200)
        metrics.http_request_seconds.observe(1, route=f"/{number}")
        metrics.pool_machines.set(1, image=f"image-{number}", kind="warm")
    counted = values(metrics, "http_requests_total")
    assert len(counted) == MAX_SERIES + 1
    assert counted[("other", "other", "other")] == 2 * MAX_SERIES
    assert max(len(method) for _, method, _ in counted) == 100
    assert values(metrics, "pool_machines")[("other", "warm")] == 1
    durations = family(metrics, "http_request_seconds").samples
    assert durations["poold_http_request_seconds_count", (("route", "other"),)] == 2 * MAX_SERIES


def test_nothing_is_lost_when_many_threads_count_while_others_look() -> None:
    metrics, rounds = Metrics(), 2000
    start = threading.Barrier(5)

    def count() -> None:
        start.wait()
        for _ in range(rounds):
            metrics.claims_total.add(outcome="warm")
            metrics.ledger_group_size.observe(3)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    start.wait()
    while any(thread.is_alive() for thread in threads):
        parse(metrics.render())  # every look is consistent: the parser compares the buckets with the count
    for thread in threads:
        thread.join()
    assert values(metrics, "claims_total") == {("warm",): 4 * rounds}
    assert family(metrics, "ledger_group_size").samples["poold_ledger_group_size_count", ()] == 4 * rounds
