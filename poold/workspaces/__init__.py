"""Workspaces in the store: the files of sandboxes under a name, version by version; and templates, which are likewise.

    workspaces/OWNER/NAME/versions/NUMBER.json           a version; whoever creates it has won the number
    workspaces/OWNER/NAME/packs/MS-SHA256.tar.zst        files: some of a version, and perhaps of those after it
    workspaces/OWNER/NAME/listings/MS-SHA256.json.zst    what there is in a version, and in which of its packs
    workspaces/OWNER/NAME/gone/NUMBER.json               a version that is no more, and since when
    workspaces/OWNER/@names/NAME                         there is such a workspace
    templates/NAME/… and templates/@names/NAME           the same

A version is written last and never changed, so what it names is there as a whole. What no version names is removed,
but not before a day has passed since it was put there, or since the version that named it has gone: whoever is about
to name it has done so by then. This room knows the store and guests, and nothing of the ledger.
"""

from poold.workspaces import content, saving, sweeping, templates, views
from poold.workspaces.errors import Damaged
from poold.workspaces.manifest import Manifest
from poold.workspaces.opening import open_shelf
from poold.workspaces.places import Place, of_owner, of_template
from poold.workspaces.shelf import Shelf

__all__ = [
    "Damaged",
    "Manifest",
    "Place",
    "Shelf",
    "content",
    "of_owner",
    "of_template",
    "open_shelf",
    "saving",
    "sweeping",
    "templates",
    "views",
]
