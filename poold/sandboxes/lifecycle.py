"""What happens to a sandbox by itself, and when. No I/O."""

from dataclasses import dataclass

from contract.models import Next, Sandbox
from contract.states import ASLEEP, State


@dataclass(frozen=True)
class Activity:
    """What goes on in a running sandbox, as far as its host knows."""

    last_ms: int  # the last request, or the last output that the host knows of
    is_busy: bool  # a request is under way, or a terminal is open


def following(sandbox: Sandbox, activity: Activity | None, *, now_ms: int) -> Next | None:
    """What comes next for `sandbox` unless something else happens first. A sandbox that is busy is not idle.

    Of what is due already its timeout comes first: a pause that fails again and again must not keep it from ending.
    """
    rules = sandbox.rules
    options: list[Next] = []
    if sandbox.state is State.RUNNING:
        if sandbox.expires_ms is not None:
            options.append(Next(rules.on_timeout, sandbox.expires_ms, "timeout"))
        if rules.idle_sec is not None and activity is not None and not activity.is_busy:
            options.append(Next("pause", activity.last_ms + 1000 * rules.idle_sec, "idle"))
    elif sandbox.state in ASLEEP and sandbox.paused_ms is not None:
        if rules.paused_sec is not None:
            options.append(Next("destroy", sandbox.paused_ms + 1000 * rules.paused_sec, "paused"))
        if rules.hibernate_sec is not None and sandbox.state is State.PAUSED:
            options.append(Next("hibernate", sandbox.paused_ms + 1000 * rules.hibernate_sec, "paused"))
    return min(options, key=lambda option: (max(option.at_ms, now_ms), option.why != "timeout"), default=None)
