"""What is sealed is read by who has the key, for what it was sealed for, and as it was."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poold.errors import ConfigError
from poold.seal import Broken, Seal, new_key

KEY = new_key()


@given(st.binary(max_size=300), st.text(max_size=50))
def test_what_was_sealed_is_read_again(data: bytes, about: str) -> None:
    assert Seal(KEY).open(Seal(KEY).close(data, about), about) == data


def test_the_same_is_sealed_otherwise_each_time() -> None:
    assert Seal(KEY).close(b"a", "x") != Seal(KEY).close(b"a", "x")


@given(st.data())
def test_a_changed_bit_anywhere_is_noticed(data: st.DataObject) -> None:
    sealed = bytearray(Seal(KEY).close(b"a secret", "x"))
    at = data.draw(st.integers(0, len(sealed) * 8 - 1))
    sealed[at // 8] ^= 1 << at % 8
    with pytest.raises(Broken):
        Seal(KEY).open(bytes(sealed), "x")


@given(st.integers(0, 60))
def test_a_part_of_it_is_nothing(length: int) -> None:
    sealed = Seal(KEY).close(b"a secret" * 10, "x")
    with pytest.raises(Broken):
        Seal(KEY).open(sealed[:length], "x")


def test_another_key_or_another_place_does_not_open_it() -> None:
    sealed = Seal(KEY).close(b"a secret", "cl-1/escrow/tk-a")
    for key, about in ((new_key(), "cl-1/escrow/tk-a"), (KEY, "cl-2/escrow/tk-a"), (KEY, "cl-1/escrow/tk-b")):
        with pytest.raises(Broken) as error:
            Seal(key).open(sealed, about)
        assert "a secret" not in str(error.value)


@pytest.mark.parametrize("key", [b"", b"00", b"zz" * 32, b"\xff" * 64, b"0" * 66])
def test_a_file_that_is_no_key_is_refused_without_telling_what_is_in_it(key: bytes) -> None:
    with pytest.raises(ConfigError) as error:
        Seal(key)
    assert key.decode("latin-1") not in str(error.value) or not key


def test_a_key_is_never_printed() -> None:
    assert KEY.decode().strip() not in repr(Seal(KEY))
