"""The warm pool: machines that are restored, identity-free and paused, so that a claim is a resume and one call.

A claim goes through a *place*: `take` finds room and changes nothing else, so that the caller can write down what
it is about to do; `open` makes the place's machine answer under its own identity; `release` gives everything back.
"""

from poold.pool.outfit import Outfit
from poold.pool.places import OVERHEAD_MB, Place, Places, Rule, Slots
from poold.pool.pool import NOBODY, Pool

__all__ = ["NOBODY", "OVERHEAD_MB", "Outfit", "Place", "Places", "Pool", "Rule", "Slots"]
