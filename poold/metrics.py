"""What poold measures, in the text format that Prometheus reads.

Updates come from the loop and from the ledger's thread, and a scrape may be rendered in a third. Every change to a
metric, and the copy that a scrape takes, is made under the one lock of its `Metrics`, held for a few bytecodes and
never while anything is called or formatted. So an update costs a few microseconds and waits for nobody long.

Labels are bounded. Their names are fixed, and so are the values of those that are ours to choose: others raise. Of
labels whose values come from outside (images, sandboxes, routes) a metric keeps `MAX_SERIES` combinations; what comes
after is counted under `other`, so that no caller can fill the host's memory with names.
"""

import bisect
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

PREFIX: Final = "poold_"
MAX_SERIES: Final = 1_000  # of one metric
MAX_VALUE_CHARS: Final = 100
OTHER: Final = "other"

# In seconds: from a read of the ledger to a boot on a busy host.
SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)

Labels = tuple[str, ...]  # the values, in the order of the names
Source = Callable[[], Mapping[Labels, float]]
Choices = Mapping[str, Sequence[str] | None]  # by label: the values that it may have, or None for any


class Metric:
    """One name with its help, its labels and its series."""

    kind: str

    def __init__(self, lock: threading.Lock, name: str, help_text: str, labels: Choices) -> None:
        self.name = PREFIX + name
        self.help = help_text
        self._lock = lock
        self._labels = tuple(labels)
        self._choices = tuple(labels.values())

    def samples(self) -> Iterable[str]:
        """The lines of all series."""
        raise NotImplementedError

    def _key(self, given: Mapping[str, object]) -> Labels:
        """The values of the labels. Raises `ValueError` for a label or a value that this metric does not have."""
        if len(given) != len(self._labels):
            raise ValueError(f"{self.name} has the labels {self._labels}, got {tuple(given)}")
        key = []
        for label, choices in zip(self._labels, self._choices, strict=True):
            if label not in given:
                raise ValueError(f"{self.name} has the labels {self._labels}, got {tuple(given)}")
            value = str(given[label])
            if choices is not None and value not in choices:
                raise ValueError(f"{self.name}: {label} must be one of {', '.join(choices)}, got {value[:80]!r}")
            key.append(value[:MAX_VALUE_CHARS])
        return tuple(key)

    def _bounded(self, key: Labels, series: Mapping[Labels, object]) -> Labels:
        """`key`, or the one for all others if there are too many. To be called with the lock held."""
        if key in series or len(series) < MAX_SERIES:
            return key
        pairs = zip(key, self._choices, strict=True)
        return tuple(value if choices is not None else OTHER for value, choices in pairs)


class _Numbers(Metric):
    """Series that are one number each: kept here, or asked for when somebody looks."""

    def __init__(self, lock: threading.Lock, name: str, help_text: str, labels: Choices) -> None:
        super().__init__(lock, name, help_text, labels)
        self._values: dict[Labels, float] = {}
        self._source: Source | None = None

    def read_from(self, source: Source) -> None:
        """From now on the values are what `source` says at each scrape, by label values in their order.

        It is called where `render` is, and must not wait. What it no longer tells of is gone from the metric.
        """
        self._source = source

    def forget(self, **labels: object) -> None:
        """The series is gone, as is what it was of. Succeeds if there is none."""
        key = self._key(labels)
        with self._lock:
            self._values.pop(key, None)

    def samples(self) -> Iterable[str]:
        if self._source is not None:
            told = [
                (self._key(dict(zip(self._labels, key, strict=True))), value) for key, value in self._source().items()
            ]
            values = dict(sorted(told)[:MAX_SERIES])
        else:
            with self._lock:
                values = dict(self._values)
        for key, value in sorted(values.items()):
            yield _sample(self.name, self._labels, key, value)


class Counter(_Numbers):
    """A number that only grows."""

    kind = "counter"

    def add(self, amount: float = 1, **labels: object) -> None:
        if not amount >= 0:
            raise ValueError(f"{self.name} only grows, got {amount}")
        key = self._key(labels)
        with self._lock:
            key = self._bounded(key, self._values)
            self._values[key] = self._values.get(key, 0) + amount


class Gauge(_Numbers):
    """A number as it is now."""

    kind = "gauge"

    def set(self, value: float, **labels: object) -> None:
        key = self._key(labels)
        with self._lock:
            self._values[self._bounded(key, self._values)] = value


class Histogram(Metric):
    """How many observations there were up to each bound, how many in all, and their sum."""

    kind = "histogram"

    def __init__(
        self, lock: threading.Lock, name: str, help_text: str, labels: Choices, bounds: Sequence[float]
    ) -> None:
        super().__init__(lock, name, help_text, labels)
        self._bounds = tuple(bounds)
        self._counts: dict[Labels, list[int]] = {}  # by bucket, the last one for all that is beyond the bounds
        self._sums: dict[Labels, float] = {}

    def observe(self, value: float, **labels: object) -> None:
        key = self._key(labels)
        bucket = bisect.bisect_left(self._bounds, value)
        with self._lock:
            key = self._bounded(key, self._counts)
            if key not in self._counts:
                self._counts[key] = [0] * (len(self._bounds) + 1)
            self._counts[key][bucket] += 1
            self._sums[key] = self._sums.get(key, 0.0) + value

    def samples(self) -> Iterable[str]:
        with self._lock:
            series = [(key, list(counts), self._sums[key]) for key, counts in self._counts.items()]
        names = (*self._labels, "le")
        for key, counts, total in sorted(series):
            count = 0
            for bound, in_bucket in zip((*map(_number, self._bounds), "+Inf"), counts, strict=True):
                count += in_bucket
                yield _sample(f"{self.name}_bucket", names, (*key, bound), count)
            yield _sample(f"{self.name}_sum", self._labels, key, total)
            yield _sample(f"{self.name}_count", self._labels, key, count)


class Metrics:
    """All that one poold measures. Safe to update from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: list[Metric] = []
        self._of_sandboxes()
        self._of_the_host()
        self._of_requests()
        self._of_tasks()

    def _of_sandboxes(self) -> None:
        self.claims_total = self._counter(
            "claims_total", "Claims by what came of them", outcome=("warm", "restored", "refused", "failed")
        )
        self.claim_seconds = self._histogram("claim_seconds", "From a claim to a guest that has its identity")
        self.pool_machines = self._gauge(
            "pool_machines", "Machines that wait to be claimed", image=None, kind=("warm", "wanted")
        )
        self.sandboxes = self._gauge("sandboxes", "Sandboxes by state", state=None)
        self.pause_seconds = self._histogram("pause_seconds", "Pausing a sandbox")
        self.resume_seconds = self._histogram("resume_seconds", "Resuming a sandbox")
        self.hibernate_seconds = self._histogram("hibernate_seconds", "Putting a paused sandbox into the store")
        self.fetch_seconds = self._histogram("fetch_seconds", "Bringing a hibernated sandbox back to disk")
        self.guest_call_seconds = self._histogram("guest_call_seconds", "Calls of guests, to the head of the answer")
        self.vm_cpu_seconds_total = self._counter(
            "vm_cpu_seconds_total", "Processor time that a sandbox's machine has used", sandbox=None
        )
        self.vm_memory_bytes = self._gauge(
            "vm_memory_bytes", "Memory that a sandbox's machine has for itself", sandbox=None
        )
        self.egress_bytes_total = self._counter(
            "egress_bytes_total", "Bytes that sandboxes have sent to the world and received from it", way=("up", "down")
        )

    def _of_the_host(self) -> None:
        self.ledger_commit_seconds = self._histogram("ledger_commit_seconds", "Commits of the ledger")
        self.ledger_group_size = self._histogram("ledger_group_size", "Writes that one commit had", bounds=SIZES)
        self.store_request_seconds = self._histogram("store_request_seconds", "Requests to the store that hosts share")
        self.store_requests_total = self._counter(
            "store_requests_total", "Requests to that store", outcome=("answered", "failed")
        )
        self.ledger_replica_lag_seconds = self._gauge(
            "ledger_replica_lag_seconds", "For how long the oldest commit waits that the replica may not have"
        )
        self.ledger_replica_up = self._gauge("ledger_replica_up", "1 if the last sync of the replica was done")
        self.ledger_replica_syncs_total = self._counter(
            "ledger_replica_syncs_total", "Syncs of the replica", outcome=("done", "failed")
        )
        self.ledger_replica_sync_seconds = self._histogram("ledger_replica_sync_seconds", "Syncs that were done")
        self.ledger_replica_restarts_total = self._counter(
            "ledger_replica_restarts_total", "Litestream ended and was started again"
        )
        self.recovery_total = self._counter("recovery_total", "What was found at a start and how it went on", what=None)
        self.egress_connections_total = self._counter(
            "egress_connections_total",
            "Connections of guests, and packets that were dropped",
            verdict=("allowed", "refused"),
            via=("connect", "http", "tls", "tcp", "dns", "packet"),
        )
        self.lease_epoch = self._gauge("lease_epoch", "The epoch in which this host holds its lease")
        self.lease_left_seconds = self._gauge(
            "lease_left_seconds", "How long the host goes on if its lease is not renewed"
        )
        self.lease_renewals_total = self._counter(
            "lease_renewals_total", "Tries to renew the lease", outcome=("renewed", "failed")
        )
        self.lease_fences_total = self._counter(
            "lease_fences_total",
            "Ends of a lease before this start, by who killed the machines",
            by=("poold", "warden"),
        )
        self.drains_total = self._counter(
            "drains_total", "Drains of this host that move everything", outcome=("begun", "moved", "partly", "undone")
        )
        self.draining = self._gauge("draining", "1 while the host takes nothing new, for it is being or was emptied")
        self.spot_notices_total = self._counter(
            "spot_notices_total",
            "Notices in the instance's metadata that the host is to go",
            kind=("terminate", "stop", "hibernate", "rebalance", "other"),
        )
        self.takeover_troubles = self._gauge(
            "takeover_troubles", "Lost hosts whose lease this one has taken, and whose ledger it cannot carry on yet"
        )
        self.takeover_missing = self._gauge(
            "takeover_missing", "Sandboxes and tasks of lost hosts that make no sense, and stay in the replica"
        )
        self.hosts_alive = self._gauge("hosts_alive", "Hosts of the cluster that hold their leases, as seen from here")
        self.host_pressure = self._gauge("host_pressure", "1 while the host is short of it", what=None)

    def _of_requests(self) -> None:
        self.http_requests_total = self._counter(
            "http_requests_total", "Requests that were answered", route=None, method=None, status=None
        )
        self.tickets_refused_total = self._counter(
            "tickets_refused_total",
            "Tickets that were refused, and whether that is an audit row",
            audited=("yes", "no"),
        )
        self.http_request_seconds = self._histogram(
            "http_request_seconds", "From a request to the end of its answer", route=None
        )

    def _of_tasks(self) -> None:
        self.tasks = self._gauge("tasks", "Tasks by state", state=None)
        self.tasks_total = self._counter(
            "tasks_total", "Tasks that have ended", outcome=("completed", "failed", "stopped")
        )
        self.task_first_event_seconds = self._histogram(
            "task_first_event_seconds", "From a task's creation to its agent's first event"
        )
        self.task_events_total = self._counter("task_events_total", "Events that agents told")
        self.webhooks_total = self._counter(
            "webhooks_total", "Tries to tell somebody of a task's end", outcome=("delivered", "failed", "given_up")
        )

    def render(self) -> bytes:
        """Everything, as `text/plain; version=0.0.4`."""
        lines: list[str] = []
        for metric in self._all:
            lines.append(f"# HELP {metric.name} {_escaped(metric.help, quotes=False)}")
            lines.append(f"# TYPE {metric.name} {metric.kind}")
            lines.extend(metric.samples())
        return ("\n".join(lines) + "\n").encode()

    def _counter(self, name: str, help_text: str, **labels: Sequence[str] | None) -> Counter:
        metric = Counter(self._lock, name, help_text, labels)
        self._all.append(metric)
        return metric

    def _gauge(self, name: str, help_text: str, **labels: Sequence[str] | None) -> Gauge:
        metric = Gauge(self._lock, name, help_text, labels)
        self._all.append(metric)
        return metric

    def _histogram(
        self, name: str, help_text: str, *, bounds: Sequence[float] = SECONDS, **labels: Sequence[str] | None
    ) -> Histogram:
        metric = Histogram(self._lock, name, help_text, labels, bounds)
        self._all.append(metric)
        return metric


def _sample(name: str, labels: Sequence[str], values: Sequence[str], value: float) -> str:
    pairs = ",".join(f'{label}="{_escaped(text)}"' for label, text in zip(labels, values, strict=True))
    return f"{name}{{{pairs}}} {_number(value)}" if pairs else f"{name} {_number(value)}"


def _number(value: float) -> str:
    """As Prometheus reads it: whole numbers without a point, infinities and NaN by their names there."""
    if value != value:  # noqa: PLR0124 — only NaN is not itself
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(float(value))


def _escaped(text: str, *, quotes: bool = True) -> str:
    text = text.encode("utf-8", "backslashreplace").decode().replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text
