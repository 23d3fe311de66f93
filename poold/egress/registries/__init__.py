"""Where packages come from, as this host's own clients are set up. We know no registry's name by ourselves.

Each client's files are read as that client reads them, and guests get settings that lead to the same places. No
password of the host is among them: user and password are taken out of every URL, and keys and tokens of other kinds
are never copied. What stands in a URL's path stays there.

An index that sends its clients to other hosts for the packages themselves does so in its replies, which nobody reads
here: those names are for the operator to add.

The files for guests are to be written as they are, also the empty ones: those switch off what an image came with.
`/etc/apt/sources.list`, `/etc/apt/sources.list.d/0000warren.list` and `0000warren.sources` in the same folder are an
image's own, and give way to `warren.sources`. The other files stand where an image has none.
"""

from poold.egress.registries.reading import Registries, read_registries

__all__ = ["Registries", "read_registries"]
