"""Host records: what one version writes another reads, and no record sends tickets where they must not go."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from contract.errors import BadField, CallerError
from contract.hosts import MAX_SIZE, Host, host_address, is_loopback
from contract.models import Shape
from contract.ring import Room

sizes = st.integers(0, MAX_SIZE)
plain = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
rooms = st.tuples(sizes, sizes).map(lambda both: Room(max(both), min(both)))
shapes = st.builds(Shape, plain, *[st.integers(1, MAX_SIZE)] * 3)
records = st.builds(
    Host,
    name=st.from_regex(r"[a-z0-9][a-z0-9.-]{0,62}", fullmatch=True),
    address=st.sampled_from(["https://10.0.0.1:7070", "http://127.0.0.1:1", "https://[2001:db8::1]:65535"]),
    beat=sizes,
    slots=rooms,
    memory_mb=rooms,
    vcpus=sizes,
    max_memory_mb=sizes,
    max_disk_mb=sizes,
    images=st.lists(shapes, max_size=4).map(tuple),
    default_image=plain,
    draining=st.booleans(),
    ready=st.booleans(),
    version=plain,
)


def record(**changed: object) -> bytes:
    return json.dumps({"name": "a", "address": "https://a:7070", **changed}).encode()


class TestRecords:
    @given(records)
    def test_what_is_written_is_what_is_read(self, host: Host) -> None:
        assert Host.decode(host.encode()) == host

    def test_a_host_that_says_little_is_read_and_has_no_room(self) -> None:
        host = Host.decode(record())
        assert host == Host("a", "https://a:7070")
        assert host.room.left == 0

    def test_what_a_later_version_adds_is_passed_over(self) -> None:
        assert Host.decode(record(gpus=4, slots={"all": 2, "free": 1, "held": 1})).slots == Room(2, 1)

    def test_who_claims_more_room_than_all_has_all_of_it(self) -> None:
        assert Host.decode(record(memory_mb={"all": 10, "free": 1_000})).memory_mb == Room(10, 10)

    @given(st.binary(max_size=200))
    @example(b"")
    @example(b'{"images":' + b"[" * 50_000)
    def test_bytes_that_are_no_record_are_refused(self, data: bytes) -> None:
        with pytest.raises(CallerError):
            Host.decode(data)

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("name", "../../etc"),
            ("name", "A"),
            ("name", ""),
            ("name", "a\n"),
            ("name", "a" * 64),
            ("name", None),
            ("address", "http://10.0.0.1:7070"),
            ("address", None),
            ("beat", -1),
            ("beat", MAX_SIZE + 1),
            ("slots", 5),
            ("slots", {"all": -1}),
            ("memory_mb", {"all": 5, "free": -1}),
            ("images", {}),
            ("images", [5]),
            ("images", [{}]),
            ("images", [{"image": "x", "vcpus": 0, "memory_mb": 1, "disk_mb": 1}]),
            ("images", [{"image": "x" * 65, "vcpus": 1, "memory_mb": 1, "disk_mb": 1}]),
            ("images", [{"image": "x", "vcpus": 1, "memory_mb": 1, "disk_mb": 1}] * 1001),
            ("draining", "no"),
            ("ready", 1),
            ("version", "v" * 65),
        ],
    )
    def test_a_wrong_field_is_named(self, field: str, value: object) -> None:
        with pytest.raises(BadField) as refused:
            Host.decode(record(**{field: value}))
        assert str(refused.value.details["field"]).startswith(field)


class TestRoom:
    def test_it_is_of_what_is_scarcer(self) -> None:
        slots, memory = Room(10, 1), Room(1000, 900)
        assert Host("a", "", slots=slots, memory_mb=memory).room == slots
        assert Host("a", "", slots=Room(10, 10), memory_mb=memory).room == memory

    @pytest.mark.parametrize("state", [{"draining": True}, {"ready": False}, {"draining": True, "ready": False}])
    def test_a_host_that_takes_nothing_new_has_none(self, state: dict[str, bool]) -> None:
        assert Host("a", "", slots=Room(9, 9), memory_mb=Room(9, 9), **state).room.left == 0

    @given(records)
    def test_a_host_keeps_its_share_of_the_ids_whatever_is_left_and_whether_it_drains(self, host: Host) -> None:
        assert host.weight == max(1.0, float(host.memory_mb.all))


class TestAddresses:
    @pytest.mark.parametrize(
        "text",
        [
            "https://10.0.0.1:7070",
            "https://host-1.example.org:443",
            "https://[2001:db8::1]:7070",
            "http://127.0.0.1:7070",
            "http://127.8.9.1:7070",
            "http://[::1]:7070",
            "http://localhost:7070",
        ],
    )
    def test_what_gateways_may_dial(self, text: str) -> None:
        assert host_address(text) == text

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "10.0.0.1:7070",
            "https://10.0.0.1",
            "https://10.0.0.1:",
            "https://:7070",
            "https://10.0.0.1:0",
            "https://10.0.0.1:65536",
            "https://10.0.0.1:7070/",
            "https://10.0.0.1:7070/v1",
            "https://10.0.0.1:7070?",
            "https://10.0.0.1:7070?a=b",
            "https://10.0.0.1:7070#",
            "https://10.0.0.1:7070#a",
            "https://user@10.0.0.1:7070",
            "https://:secret@10.0.0.1:7070",
            "https://@10.0.0.1:7070",
            "https://10.0.0.1:7070\r\nX: y",
            "https://10.0.0.1:7070\n",
            " https://10.0.0.1:7070",
            "https://10.0.0.1\t:7070",
            "https://[::1:7070",
            "https://[zz]:7070",
            "https://[1:2]:7070",
            "https://10.0.0.1:٧٠٧٠",
            "ftp://10.0.0.1:7070",
            "unix:///run/poold.sock",
            "http://10.0.0.1:7070",
            "http://127.0.0.1.example.org:7070",
            "http://localhost.example.org:7070",
            "http://0.0.0.0:7070",
            "http://[::]:7070",
        ],
    )
    def test_what_they_may_not(self, text: str) -> None:
        with pytest.raises(BadField) as refused:
            host_address(text, "GATEWAY_HOSTS")
        assert refused.value.details["field"] == "GATEWAY_HOSTS"

    @given(st.text(max_size=60) | st.text("htps:/[]0123456789.@#?%\\\n ", max_size=60))
    def test_whatever_is_given_is_an_address_or_a_bad_field(self, text: str) -> None:
        try:
            assert host_address(text) == text
        except BadField:
            return
        assert text.isascii()
        assert not set(text) & set(" \r\n\t@?#\\")

    def test_loopback(self) -> None:
        assert [is_loopback(name) for name in ("127.0.0.1", "::1", "localhost")] == [True] * 3
        assert [is_loopback(name) for name in ("10.0.0.1", "", "example.org", "::")] == [False] * 4
