"""The stock: what is done about the pool is never too much, for any pool."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from contract.models import Shape
from poold.config import PoolSize
from poold.stock import DEMAND_WINDOW_S, Demand, Drop, Fill, plan, victim

SHAPES = [Shape(name, 1, memory_mb, 1024) for name in ("minimal", "python") for memory_mb in (128, 256)]
counts = st.dictionaries(st.sampled_from(SHAPES), st.integers(0, 6))
sizes = st.tuples(st.integers(0, 5), st.integers(0, 5)).map(lambda pair: PoolSize(min(pair), max(*pair, 1)))


@given(counts, counts, st.integers(0, 10))
def test_a_plan_never_does_too_much(warm: dict[Shape, int], targets: dict[Shape, int], rooms: int) -> None:
    actions = plan(warm, targets, rooms=rooms)
    drops = Counter(action.shape for action in actions if isinstance(action, Drop))
    fills = Counter(action.shape for action in actions if isinstance(action, Fill))
    assert fills.total() <= rooms + drops.total()
    assert not drops.keys() & fills.keys()
    assert actions == sorted(actions, key=lambda action: isinstance(action, Fill))  # drops first
    for shape in SHAPES:
        after = warm.get(shape, 0) - drops[shape] + fills[shape]
        assert after <= max(targets.get(shape, 0), 0)
        assert after >= min(warm.get(shape, 0), targets.get(shape, 0))


@given(counts, counts)
def test_with_room_enough_a_plan_reaches_its_targets_and_then_rests(
    warm: dict[Shape, int], targets: dict[Shape, int]
) -> None:
    after = Counter(warm)
    for action in plan(warm, targets, rooms=100):
        after[action.shape] += 1 if isinstance(action, Fill) else -1
    assert {shape: after[shape] for shape in SHAPES} == {shape: targets.get(shape, 0) for shape in SHAPES}
    assert plan(after, targets, rooms=100) == []


@given(counts, counts)
def test_the_emptiest_share_is_filled_first(warm: dict[Shape, int], targets: dict[Shape, int]) -> None:
    fills = [action.shape for action in plan(warm, targets, rooms=100) if isinstance(action, Fill)]
    if fills:
        wanting = [shape for shape in targets if targets[shape] > warm.get(shape, 0)]
        assert warm.get(fills[0], 0) == min(warm.get(shape, 0) for shape in wanting)


@given(sizes, st.lists(st.floats(0, 300), max_size=30), st.floats(0, 1000))
def test_a_target_is_between_floor_and_ceiling(size: PoolSize, claims: list[float], later: float) -> None:
    demand = Demand(size)
    now = 0.0
    for now in sorted(claims):
        demand.claimed(now)
        assert size.floor <= demand.target(now) <= size.ceiling
        assert len(demand.claims) <= size.ceiling
    assert demand.target(now) >= min(size.ceiling, 1 if claims else 0)
    assert size.floor <= demand.target(now + later) <= size.ceiling
    assert demand.target(now + later + DEMAND_WINDOW_S + 1) == size.floor


@given(sizes, st.integers(0, 10))
def test_as_many_as_were_claimed_lately_are_kept(size: PoolSize, claimed: int) -> None:
    demand = Demand(size)
    for _ in range(claimed):
        demand.claimed(100.0)
    assert demand.target(100.0 + DEMAND_WINDOW_S / 2) == min(size.ceiling, max(size.floor, claimed))


@given(counts, st.sampled_from(SHAPES))
def test_the_victim_is_another_shape_with_the_most_to_spare(warm: dict[Shape, int], wanted: Shape) -> None:
    spare = victim(warm, wanted)
    others = [shape for shape, count in warm.items() if count and shape != wanted]
    if spare is None:
        assert others == []
    else:
        assert spare in others
        assert warm[spare] == max(warm[shape] for shape in others)
