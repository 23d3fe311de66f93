"""What is in force: the policy, its limits, and every connection that it let through or lets wait.

All of this happens in one thread and without a pause: when `rule` returns, nothing passes that the new policy refuses.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from poold.egress.addresses import Address
from poold.egress.policy import Policy, Refused, Target, Verdict, decide, decide_address
from poold.egress.proxy.limits import Bucket, Meter
from poold.egress.proxy.refusals import Refusal
from poold.egress.proxy.rows import Row, Rows, shown, shown_rule


class Visitor(Protocol):
    """Whoever has a flow: a guest's connection."""

    via: str

    def cut(self, why: str) -> None:
        """End it now: after this not one more byte passes. Its flow has its row."""
        ...

    async def has_left(self) -> None:
        """Return when the guest has gone, or says no more."""
        ...


class Flow:
    """What a visit has with one target, from the decision to its row."""

    def __init__(self, gate: "Gate", number: int, visitor: Visitor, target: Target, rule: str) -> None:
        self.id = number
        self.visitor = visitor
        self.target = target
        self.rule = rule
        self.address: Address | None = target.address  # where it goes, once it is known
        self.up = self.down = 0
        self.is_open = False
        self.is_dialled = False  # a packet may have left
        self.has_ended = False
        self.sandbox = gate.sandbox
        self.at_ms = _now_ms()
        self.via = visitor.via
        self._gate = gate
        self._began = time.monotonic()

    def add_up(self, count: int) -> None:
        self.up += count
        meter = self._gate.meter
        meter.up += count
        if meter.up > meter.most_up:
            self._gate.cut_all("byte_limit")

    def add_down(self, count: int) -> None:
        self.down += count
        meter = self._gate.meter
        meter.down += count
        if meter.down > meter.most_down:
            self._gate.cut_all("byte_limit")

    def check(self, address: Address) -> None:
        """Remember where this goes. Raises `Refusal` if it may not go there."""
        verdict = decide_address(self._gate.policy, self.target, address, self.rule)
        if isinstance(verdict, Refused):
            raise Refusal(verdict.why, verdict.told, address)
        self.address = address
        self.is_dialled = True

    def check_again(self) -> None:
        """Another request on the same connection: where that leads is looked at for this one, too. Raises `Refusal`."""
        if self.address is not None:
            self.check(self.address)

    def open(self) -> None:
        """It is connected."""
        self.is_open = True
        self._gate.tell(self.view())

    def view(self) -> dict[str, Any]:
        return {
            "told": "open",
            "id": self.id,
            "sandbox": self.sandbox,
            "at_ms": self.at_ms,
            "via": self.via,
            "name": shown(self.target.name),
            "address": None if self.address is None else str(self.address),
            "port": self.target.port,
            "rule": shown_rule(self.rule),
        }

    def verdict(self, policy: Policy) -> Verdict:
        """What `policy` says of it, with what is known of it now."""
        verdict = decide(policy, self.target)
        if isinstance(verdict, Refused) or self.address is None:
            return verdict
        return decide_address(policy, self.target, self.address, verdict.rule)

    def end(self, why: str | None = None, verdict: str = "allowed") -> None:
        """It is over: the row is written, if it was ever open. The first call counts."""
        if self.has_ended:
            return
        self.has_ended = True
        self._gate.flows.pop(self.id, None)
        if not self.is_open and why is None:
            return  # whoever could not be reached is told of by others
        self._gate.rows.add(
            Row(
                sandbox=self.sandbox,
                at_ms=self.at_ms,
                verdict=verdict if self.is_open or self.is_dialled else "refused",
                via=self.via,
                name=shown(self.target.name),
                address=None if self.address is None else str(self.address),
                port=self.target.port,
                rule=shown_rule(self.rule),
                why=why,
                up=self.up,
                down=self.down,
                duration_ms=int((time.monotonic() - self._began) * 1000),
                id=self.id if self.is_open else None,
            )
        )


@dataclass(eq=False)
class _Held:
    """A connection that waits for another policy."""

    told: dict[str, Any]
    target: Target
    changed: "asyncio.Future[None]"


class Gate:
    """Decides, and remembers what it let through. `tell` brings word to poold, or to nobody."""

    def __init__(self, tell: Callable[[dict[str, Any]], None], wake: Callable[[], None], alike_s: float) -> None:
        self.policy = Policy()
        self.number = 0
        self.sandbox: str | None = None
        self.rows = Rows(wake)
        self.meter = Meter()
        self.flows: dict[int, Flow] = {}
        self.held: dict[int, _Held] = {}
        self.tell = tell
        self.ruled: Callable[[], None] = lambda: None  # called when another policy is in force
        self._alike_s = alike_s
        self._last_id = 0
        self._bucket = Bucket(self.policy.limits.connects_per_sec, time.monotonic())

    def rule(self, number: int, sandbox: str | None, policy: Policy) -> None:
        """Put `policy` in force. What it refuses is cut when this returns; what waited is decided again."""
        if sandbox != self.sandbox:
            self.rows.flush()
            self.meter.up = self.meter.down = 0
        if policy.limits.connects_per_sec != self.policy.limits.connects_per_sec:
            self._bucket = Bucket(policy.limits.connects_per_sec, time.monotonic())
        self.number, self.sandbox, self.policy = number, sandbox, policy
        self.meter.limit(policy.limits)
        for flow in list(self.flows.values()):
            # What one sandbox began is not the next one's.
            if flow.sandbox != sandbox or isinstance(flow.verdict(policy), Refused):
                flow.visitor.cut("cut")
        if self.meter.is_over:
            self.cut_all("byte_limit")
        for held in list(self.held.values()):
            if not held.changed.done():
                held.changed.set_result(None)
        self.ruled()

    def cut_all(self, why: str) -> None:
        for flow in list(self.flows.values()):
            flow.visitor.cut(why)

    async def enter(self, visitor: Visitor, target: Target) -> Flow:
        """Let a new connection to `target` through, now or when a policy allows it. Raises `Refusal`."""
        await self.allow(visitor, target)
        self._check_limits(target)
        # The last word, with nothing between it and the flow: what was decided before may be an old policy's.
        verdict = decide(self.policy, target)
        if isinstance(verdict, Refused):
            raise Refusal(verdict.why, verdict.told)
        flow = Flow(self, self.next_id(), visitor, target, verdict.rule)
        self.flows[flow.id] = flow
        return flow

    async def allow(self, visitor: Visitor, target: Target) -> str:
        """The rule that allows `target`, now or when somebody makes one. Raises `Refusal`."""
        verdict = decide(self.policy, target)
        if isinstance(verdict, Refused) and verdict.why == "policy" and self.policy.hold_s:
            await self._hold(visitor, target)
            verdict = decide(self.policy, target)
        if isinstance(verdict, Refused):
            raise Refusal(verdict.why, verdict.told)
        return verdict.rule

    async def _hold(self, visitor: Visitor, target: Target) -> None:
        """Wait until a policy has another word for `target`, the time is over, or the guest has left."""
        number, hold_s = self.next_id(), self.policy.hold_s
        told = {"told": "waiting", "id": number, "name": shown(target.name), "port": target.port}
        told |= {"address": None if target.address is None else str(target.address)}
        told |= {"until_ms": _now_ms() + hold_s * 1000}
        held = self.held[number] = _Held(told, target, asyncio.get_running_loop().create_future())
        self.tell(told)
        left = asyncio.ensure_future(visitor.has_left())
        deadline = time.monotonic() + hold_s
        try:
            while self._is_still_held(target) and time.monotonic() < deadline and not left.done():
                held.changed = asyncio.get_running_loop().create_future()
                await asyncio.wait(
                    (held.changed, left), timeout=deadline - time.monotonic(), return_when=asyncio.FIRST_COMPLETED
                )
        finally:
            left.cancel()
            del self.held[number]

    def _is_still_held(self, target: Target) -> bool:
        verdict = decide(self.policy, target)
        return isinstance(verdict, Refused) and verdict.why == "policy" and self.policy.hold_s > 0

    def _check_limits(self, target: Target) -> None:
        if self.meter.is_over:
            raise Refusal("byte_limit", f"{target}: this sandbox has used up its bytes")
        most = self.policy.limits.connections
        if len(self.flows) >= most:
            raise Refusal("too_many", f"{target}: this sandbox has {most} connections already")
        self.check_rate(target)

    def check_rate(self, target: Target) -> None:
        """Count one more connection to the world. Raises `Refusal` if there were too many just now."""
        if not self._bucket.has_one(time.monotonic()):
            most = self.policy.limits.connects_per_sec
            raise Refusal("too_fast", f"{target}: this sandbox makes more than {most} connections a second")

    def refused(
        self, via: str, why: str, *, name: str | None = None, address: str | None = None, port: int | None = None
    ) -> None:
        """Write down that something was refused."""
        row = Row(self.sandbox, _now_ms(), "refused", via, shown(name), address, port, why=why)
        if self.rows.refuse(row):
            asyncio.get_running_loop().call_later(self._alike_s, self.rows.flush)

    def next_id(self) -> int:
        self._last_id += 1
        return self._last_id


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
