"""The internet of the test's world: its names, its servers and what they have to give away."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.egress.certificates import Certificates, make_certificates
from tests.egress.goods import Goods, make_goods
from tests.egress.spaces import Space
from tests.egress.web import Web, open_web
from tests.egress.zone import Zone, open_zone


@dataclass(frozen=True)
class Internet:
    web: Web
    zone: Zone
    goods: Goods
    certificates: Certificates


@contextlib.contextmanager
def open_internet(space: Space, folder: Path) -> Iterator[Internet]:
    """Serve in `space` during the block, with files in `folder`."""
    certificates = make_certificates(folder)
    goods = make_goods(folder / "site")
    with open_zone(space.do) as zone, open_web(space, folder / "site", certificates.server) as web:
        yield Internet(web, zone, goods, certificates)
