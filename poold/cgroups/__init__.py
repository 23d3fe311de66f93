"""Control groups: what one machine may take of its host, held by the kernel, and what it has taken.

Which version a host has is found by looking. A machine that passes its memory is killed, which is the end of one
sandbox; one that wants more processor, disk or threads than it has been given waits or is refused.
"""

from poold.cgroups.groups import Cgroups, open_cgroups
from poold.cgroups.limits import Limits, Usage, limits_of

__all__ = ["Cgroups", "Limits", "Usage", "limits_of", "open_cgroups"]
