"""Which kernel is taken, from what apt shows of Debian's archive."""

import pytest

from images.debian import dependency_in
from images.errors import ImageError

PATTERN = r"linux-image-[0-9][\w.-]*-cloud-amd64"
SHOWN = """\
Package: linux-image-cloud-amd64
Version: 6.1.3-1
Depends: linux-image-6.1.0-3-cloud-amd64 (= 6.1.3-1)
Description: Linux
 for clouds

Package: linux-image-cloud-amd64
Version: 6.1.2-1
Depends: linux-image-6.1.0-2-cloud-amd64 (= 6.1.2-1)
"""


def test_the_newest_is_taken() -> None:
    assert dependency_in(SHOWN, PATTERN, ()) == "linux-image-6.1.0-3-cloud-amd64"


def test_one_that_is_known_to_be_broken_is_passed_over() -> None:
    assert dependency_in(SHOWN, PATTERN, {"6.1.3-1"}) == "linux-image-6.1.0-2-cloud-amd64"


def test_where_all_are_broken_it_is_said_what_helps() -> None:
    with pytest.raises(ImageError, match="WARREN_APT_SOURCES"):
        dependency_in(SHOWN, PATTERN, {"6.1.2-1", "6.1.3-1"})


def test_a_package_that_depends_on_something_else_is_named() -> None:
    with pytest.raises(ImageError, match=r"linux-image-cloud-amd64 depends on linux-image-6.1.0-3-cloud-amd64"):
        dependency_in(SHOWN, "linux-image-arm64", ())
