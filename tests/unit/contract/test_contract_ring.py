"""The ring: everybody comes to the same owner, little moves when hosts come and go, and hosts fill alike."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.ids import new_id
from contract.ring import MAX_DRAWS, Room, owner, place, ranked, score, spread

names = st.text("abcdefghijklmnopqrstuvwxyz0123456789-.", min_size=1, max_size=70)
weighted = st.floats(min_value=0.5, max_value=1e7)
hosts = st.dictionaries(names, weighted, min_size=1, max_size=8)
keys = st.text(max_size=30)


def ids(seed: int) -> Callable[[], str]:
    entropy = random.Random(seed).randbytes
    return lambda: new_id("sb", entropy)


class TestRanking:
    @given(keys, hosts)
    def test_it_names_every_host_once_and_the_owner_first(self, key: str, weights: dict[str, float]) -> None:
        ranking = ranked(key, weights)
        assert sorted(ranking) == sorted(weights)
        assert ranking[0] == owner(key, weights)

    @given(keys, hosts, st.randoms(use_true_random=False))
    def test_it_does_not_depend_on_the_order_in_which_hosts_are_known(
        self, key: str, weights: dict[str, float], order: random.Random
    ) -> None:
        shuffled = dict(order.sample(sorted(weights.items()), len(weights)))
        assert ranked(key, shuffled) == ranked(key, weights)

    @given(keys, hosts, names, weighted)
    def test_a_host_that_joins_or_leaves_changes_nothing_between_the_others(
        self, key: str, weights: dict[str, float], name: str, weight: float
    ) -> None:
        others = {host: size for host, size in weights.items() if host != name}
        joined = ranked(key, {**others, name: weight})
        assert [host for host in joined if host != name] == ranked(key, others)

    @given(keys, hosts, weighted, st.data())
    def test_a_host_that_grows_takes_ids_and_loses_none(
        self, key: str, weights: dict[str, float], more: float, data: st.DataObject
    ) -> None:
        grown = data.draw(st.sampled_from(sorted(weights)))
        before, after = owner(key, weights), owner(key, {**weights, grown: weights[grown] + more})
        assert after in (before, grown)

    def test_the_same_ids_have_the_same_owners_for_ever(self) -> None:
        """Written down: whoever changes the hash loses every id that there is."""
        weights = {"a": 1.0, "b": 1.0, "c": 2.0}
        assert ["".join(ranked(f"sb-{n}", weights)) for n in range(12)] == RECORDED

    @given(keys)
    def test_nobody_owns_anything_without_hosts_of_some_weight(self, key: str) -> None:
        assert owner(key, {}) is None
        assert ranked(key, {}) == []
        assert owner(key, {"a": 0, "b": -1}) is None
        assert owner(key, {"a": 0, "b": 1}) == "b"
        assert ranked(key, {"a": 0, "b": 1}) == ["b", "a"]  # a lookup may still ask it


RECORDED = ["bca", "cab", "bca", "cab", "cab", "acb", "bca", "cba", "acb", "cba", "cab", "cba"]


class TestShares:
    @pytest.mark.parametrize(
        "weights",
        [
            {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0, "e": 1.0},
            {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0},
            {"small": 65_536.0, "large": 1_048_576.0},
        ],
    )
    def test_each_host_owns_what_its_weight_asks_for_within_8_percent(self, weights: dict[str, float]) -> None:
        new = ids(1)
        shares = spread([new() for _ in range(20_000)], weights)
        assert set(shares) == set(weights)
        assert all(0.92 < share < 1.08 for share in shares.values()), shares

    def test_of_nothing_there_are_no_shares(self) -> None:
        assert spread([], {"a": 1.0}) == {}
        assert spread(["k"], {}) == {}
        assert spread(["k"], {"a": 0.0}) == {}
        assert spread(["k"], {"a": 0.0, "b": 1.0}) == {"b": 1.0}

    def test_a_host_that_joins_takes_its_share_of_the_ids_and_no_more(self) -> None:
        new, weights = ids(2), {f"host-{n}": 1.0 for n in range(9)}
        made = [new() for _ in range(10_000)]
        moved = [key for key in made if owner(key, {**weights, "tenth": 1.0}) != owner(key, weights)]
        assert 0.08 < len(moved) / len(made) < 0.12
        assert {owner(key, {**weights, "tenth": 1.0}) for key in moved} == {"tenth"}

    def test_names_that_differ_only_at_their_end_are_two_hosts(self) -> None:
        new, weights = ids(3), {"x" * 80 + end: 1.0 for end in "ab"}
        assert all(0.9 < share < 1.1 for share in spread([new() for _ in range(4_000)], weights).values())

    @given(weighted)
    def test_no_64_bits_are_too_low_or_too_high(self, weight: float) -> None:
        lowest, highest = score(0, weight), score((1 << 64) - 1, weight)
        assert 0 < lowest < weight < highest < float("inf")


class TestPlacement:
    @given(hosts, st.data())
    def test_a_new_id_belongs_to_a_host_that_has_room(self, weights: dict[str, float], data: st.DataObject) -> None:
        weights = {host: 1 + weight % 10 for host, weight in weights.items()}
        rooms = {host: Room(10, data.draw(st.integers(0, 10))) for host in weights if data.draw(st.booleans())}
        found = place(ids(4), weights, rooms)
        fit = {host for host, room in rooms.items() if room.free}
        assert found is None if not fit else owner(found or "", weights) in fit

    def test_nowhere_to_go(self) -> None:
        assert place(ids(5), {}, {}) is None
        assert place(ids(5), {"a": 1.0}, {}) is None
        assert place(ids(5), {"a": 1.0}, {"a": Room(0, 0)}) is None
        assert place(ids(5), {"a": 1.0}, {"b": Room(9, 9)}) is None  # nobody would find it there
        assert place(ids(5), {"a": 0.0}, {"a": Room(9, 9)}) is None

    def test_of_two_the_emptier_host_gets_it(self) -> None:
        """Nine tenths of the ids are the full one's, so most pairs with the empty one in them are decided by room."""
        new, weights = ids(6), {"full": 1.0, "empty": 1.0}
        rooms = {"full": Room(100, 1), "empty": Room(100, 99)}
        placed = [owner(place(new, weights, rooms) or "", weights) for _ in range(400)]
        assert 0.68 < placed.count("empty") / 400 < 0.82  # three of four pairs have it in them

    def test_looking_for_a_host_that_owns_next_to_nothing_comes_to_an_end(self) -> None:
        new, drawn = ids(7), 0

        def counted() -> str:
            nonlocal drawn
            drawn += 1
            return new()

        assert place(counted, {"dust": 1e-12, "rock": 1e12}, {"dust": Room(1, 1)}) is None
        assert drawn == MAX_DRAWS

    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize(
        "rooms",
        [
            {"a": 400, "b": 400, "c": 400, "d": 400, "e": 400},
            {"a": 100, "b": 200, "c": 300, "d": 400, "e": 1000},
            {"a": 150, "b": 1850},
        ],
        ids=["equal", "unequal", "one-large"],
    )
    def test_a_thousand_sandboxes_fill_every_host_alike_within_15_percent(
        self, rooms: dict[str, int], seed: int
    ) -> None:
        new, weights, free = ids(seed), {host: float(size) for host, size in rooms.items()}, dict(rooms)
        for _ in range(1_000):
            found = place(new, weights, {host: Room(rooms[host], free[host]) for host in rooms})
            free[owner(found or "", weights) or ""] -= 1
        filled = {host: (rooms[host] - free[host]) / rooms[host] for host in rooms}
        fair = 1_000 / sum(rooms.values())
        assert all(0.85 < part / fair < 1.15 for part in filled.values()), filled

    def test_the_last_room_of_a_cluster_is_found(self) -> None:
        new, weights, free = ids(9), {"a": 10.0, "b": 30.0, "c": 60.0}, {"a": 10, "b": 30, "c": 60}
        for _ in range(100):
            found = place(new, weights, {host: Room(int(weights[host]), free[host]) for host in free})
            free[owner(found or "", weights) or ""] -= 1
        assert free == {"a": 0, "b": 0, "c": 0}
        assert place(new, weights, {host: Room(int(weights[host]), 0) for host in free}) is None


def test_a_host_without_any_room_has_none_left() -> None:
    assert Room(0, 0).left == 0.0
    assert Room(0, 5).left == 0.0
    assert Room(4, 1).left == 0.25
