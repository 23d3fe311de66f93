"""What every machine of a host has: whoever asks for a machine is not to blame if it cannot be put into one."""

from typing import Any

import pytest

from poold.errors import GuestError, GuestRefused
from poold.pool import Outfit


class Stubborn:
    """A guest that takes no file."""

    async def call(self, *_: Any) -> Any:
        raise GuestRefused(400, "unknown_user", "there is no user 'user'")


async def test_a_guest_that_refuses_a_file_has_failed_and_it_says_which() -> None:
    with pytest.raises(GuestError, match=r"/home/user/.clientrc.*there is no user"):
        await Outfit({"/home/user/.clientrc": "x=1"}).put_on(Stubborn())  # type: ignore[arg-type]
