"""Hibernation: a saved machine in the object store, and back.

A machine is there as the difference to what others have too: its drive, its devices and the pages that it changed, in
parts, and a manifest that is written last. The golden memory that it is a difference of is there once, named after its
content. What comes from the store may be anything: nothing of it becomes a machine before all of it was checked.
"""

from poold.hibernate.depot import Depot, Drive
from poold.hibernate.errors import Damaged, NotOurs
from poold.hibernate.goldens import Notes
from poold.hibernate.manifest import Manifest

__all__ = ["Damaged", "Depot", "Drive", "Manifest", "NotOurs", "Notes"]
