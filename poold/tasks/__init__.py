"""Tasks: what a caller wants done by an agent, in a sandbox of its own.

`host` has all of them, and a `runner` for each that is not over; `life` is what works on one task share. A runner goes
through the phases (`claim`, `clone`, `running`, `finish`), with `steering` beside it. Decisions stand in files without
I/O: `progress` (what events come to), `judge` (whether it may go on), `plan` (when it pauses and when it goes on).

The leaves of this room know nothing of a task's life: what it keeps (`vault`, `artifacts`, `archive`), what it is
given (`secrets`, `repos`, `network`), what it costs (`prices`), and who is told of it (`webhooks`).
"""

from poold.tasks.host import Tasks
from poold.tasks.means import Tools

__all__ = ["Tasks", "Tools"]
