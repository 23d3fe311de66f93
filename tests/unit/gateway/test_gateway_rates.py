"""Token buckets and the count of wrong keys, against the clock that they are given."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.rates import BLOCKED_S, BURST, WINDOW_S, WRONG_KEYS, Bucket, Buckets, WrongKeys, network_of

waits = st.lists(st.floats(0, 3, allow_nan=False), min_size=1, max_size=200)


@given(rate=st.integers(1, 100), waits=waits)
def test_never_more_than_the_rate_and_the_burst(rate: int, waits: list[float]) -> None:
    bucket, now_s, allowed = Bucket(rate, rate * BURST, 0.0), 0.0, 0
    for wait_s in waits:
        now_s += wait_s
        allowed += bucket.take(now_s)
        assert allowed <= rate * BURST + rate * now_s + 1e-6
        assert 0 <= bucket.tokens <= rate * BURST


@given(rate=st.integers(1, 100))
def test_whoever_waits_as_long_as_told_is_let_in(rate: int) -> None:
    bucket = Bucket(rate, rate * BURST, 0.0)
    while bucket.take(0.0):
        pass
    assert bucket.take(float(bucket.wait_s))


@given(rate=st.integers(1, 1000), taken=st.integers(0, 50))
def test_the_headers_say_what_is_left(rate: int, taken: int) -> None:
    bucket = Bucket(rate, rate * BURST, 0.0)
    used = sum(bucket.take(0.0) for _ in range(taken))
    told = {name: int(value) for name, value in bucket.headers()}
    assert told[b"ratelimit-limit"] == rate * BURST
    assert told[b"ratelimit-remaining"] == rate * BURST - used
    assert bucket.at_s + told[b"ratelimit-reset"] >= used / rate


def test_a_bucket_follows_a_changed_rate() -> None:
    buckets = Buckets()
    assert buckets.of("a", 10, 0.0).rate == 10
    assert buckets.of("a", 3, 1.0).rate == 3


def test_no_more_buckets_than_there_is_memory_for() -> None:
    buckets = Buckets(most=3)
    first = buckets.of("a", 1, 0.0)
    first.take(0.0)
    for name in "bcd":
        buckets.of(name, 1, 0.0)
    assert buckets.of("a", 1, 0.0).tokens == BURST, "the oldest was forgotten, and is full again"


def test_ten_wrong_keys_a_minute_are_borne_and_the_next_is_not() -> None:
    wrong = WrongKeys()
    assert [wrong.add("192.0.2.1", 0.0) for _ in range(WRONG_KEYS)] == [0] * WRONG_KEYS
    assert wrong.add("192.0.2.1", 1.0) == BLOCKED_S
    assert wrong.add("192.0.2.2", 1.0) == 0, "another address has done nothing"


def test_an_address_is_let_try_again_after_a_while() -> None:
    wrong = WrongKeys()
    for _ in range(WRONG_KEYS + 1):
        wrong.add("192.0.2.1", 0.0)
    assert wrong.add("192.0.2.1", BLOCKED_S / 2) == BLOCKED_S / 2
    assert wrong.add("192.0.2.1", max(BLOCKED_S, WINDOW_S)) == 0


@given(addresses=st.lists(st.ip_addresses(v=4).map(str), max_size=60))
def test_many_addresses_take_bounded_memory(addresses: list[str]) -> None:
    wrong = WrongKeys(most=5)
    for address in addresses:
        wrong.add(address, 0.0)
    assert len(wrong._by_address) <= 5


def test_a_network_of_ipv6_is_one_client() -> None:
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:1")
    assert network_of("2001:db8::1") != network_of("2001:db8:0:1::1")
    assert network_of("") == ""
