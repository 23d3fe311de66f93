"""What a gateway measures, in the text format that Prometheus reads. Used from one loop; an update costs a microsecond.

Every label is ours to choose: names of operations, statuses, hosts. Nothing that a client sends becomes one.
"""

import bisect
from collections.abc import Callable, Mapping, Sequence

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
PREFIX = "gateway_"

Labels = tuple[str, ...]


class Metrics:
    """Counts of one gateway, from its start on."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, int], int] = {}
        self._seconds: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}
        self.upstream_failures: dict[str, int] = {}
        self.open_requests = 0

    def count(self, operation: str, status: int, seconds: float) -> None:
        """One request is over. Status 0: its client left, or it was broken off."""
        key = (operation, status)
        self._requests[key] = self._requests.get(key, 0) + 1
        counts = self._seconds.get(operation)
        if counts is None:
            counts = self._seconds[operation] = [0] * (len(SECONDS) + 1)
        counts[bisect.bisect_left(SECONDS, seconds)] += 1
        self._sums[operation] = self._sums.get(operation, 0.0) + seconds

    def upstream_failed(self, host: str) -> None:
        self.upstream_failures[host] = self.upstream_failures.get(host, 0) + 1

    def render(self, gauges: Mapping[str, Callable[[], Mapping[Labels, float]]]) -> bytes:
        """Everything, as `text/plain; version=0.0.4`. `gauges` are asked now: by name, values by their labels."""
        lines = [
            *_head("requests_total", "counter", "Requests by operation and status"),
            *(
                _sample("requests_total", {"operation": operation, "status": str(status)}, count)
                for (operation, status), count in sorted(self._requests.items())
            ),
            *_head("request_seconds", "histogram", "From a request to the end of its reply"),
            *(line for operation in sorted(self._seconds) for line in self._histogram(operation)),
            *_head("upstream_failures_total", "counter", "Hosts that could not be reached, or broke off"),
            *(
                _sample("upstream_failures_total", {"host": host}, count)
                for host, count in sorted(self.upstream_failures.items())
            ),
            *_head("open_requests", "gauge", "Requests and streams under way"),
            _sample("open_requests", {}, self.open_requests),
        ]
        for name, read in gauges.items():
            lines += _head(name, "gauge", name.replace("_", " "))
            lines += [_sample(name, dict(zip(("kind",), key, strict=False)), value) for key, value in read().items()]
        return ("\n".join(lines) + "\n").encode()

    def _histogram(self, operation: str) -> list[str]:
        counts, lines, below = self._seconds[operation], [], 0
        for bound, count in zip((*map(str, SECONDS), "+Inf"), counts, strict=True):
            below += count
            lines.append(_sample("request_seconds_bucket", {"operation": operation, "le": bound}, below))
        lines.append(_sample("request_seconds_sum", {"operation": operation}, self._sums[operation]))
        lines.append(_sample("request_seconds_count", {"operation": operation}, below))
        return lines


def _head(name: str, kind: str, help_text: str) -> Sequence[str]:
    return f"# HELP {PREFIX}{name} {help_text}", f"# TYPE {PREFIX}{name} {kind}"


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    pairs = ",".join(f'{label}="{text}"' for label, text in labels.items())
    shown = str(int(value)) if value == int(value) else repr(float(value))
    return f"{PREFIX}{name}{{{pairs}}} {shown}" if pairs else f"{PREFIX}{name} {shown}"
