"""Archives of guests: tar streams, read and judged member by member as they come. No I/O.

Every byte of one is a stranger's. What could be read in two ways, or would be written elsewhere than where it says, is
refused.
"""

from poold.tars.errors import ArchiveTooLarge, BadArchive
from poold.tars.members import Census, CheckpointCensus, LayerCensus
from poold.tars.tar import Tar

__all__ = ["ArchiveTooLarge", "BadArchive", "Census", "CheckpointCensus", "LayerCensus", "Tar"]
