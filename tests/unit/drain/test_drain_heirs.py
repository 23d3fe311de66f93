"""To whom a host's line goes, and what keeps another one from having it."""

from contract.hosts import Host
from contract.models import Shape
from contract.ring import Room
from poold.drain.heirs import Need, heir, lack

NEED = Need(2, 1000, frozenset({"python"}))


def host(name: str, *, slots: int = 4, memory_mb: int = 4000, images: str = "python", **more: bool) -> Host:
    shapes = tuple(Shape(image, 1, 256, 512) for image in images.split(","))
    room = Room(8000, memory_mb)
    return Host(name, "http://127.0.0.1:1", slots=Room(8, slots), memory_mb=room, images=shapes, **more)  # type: ignore[arg-type]


def named(*hosts: Host) -> dict[str, Host]:
    return {each.name: each for each in hosts}


def test_the_one_with_most_room_has_it_and_never_the_host_itself() -> None:
    found = heir("a", named(host("a", slots=8), host("b", slots=2), host("c", slots=4)), NEED)
    assert found is not None
    assert found.name == "c"


def test_one_where_it_fits_comes_before_one_with_more_room() -> None:
    found = heir("a", named(host("b", slots=8, images="other"), host("c", slots=2)), NEED)
    assert found is not None
    assert found.name == "c"


def test_a_host_that_is_emptied_itself_never_has_it() -> None:
    assert heir("a", named(host("a"), host("b", draining=True)), NEED) is None


def test_who_lacks_something_has_it_if_nobody_else_does() -> None:
    found = heir("a", named(host("b", slots=1)), NEED)
    assert found is not None
    assert lack(found, NEED) == "b has room for 1 machines, and 2 run here"


def test_what_is_lacking_is_named() -> None:
    assert lack(host("b"), NEED) is None
    assert lack(host("b", memory_mb=999), NEED) == "b has 999 MB for machines, and those that run here need 1000"
    assert lack(host("b", images="minimal"), NEED) == "b has no image python"
    assert lack(host("b", ready=False), NEED) == "b takes nothing new now"
    assert lack(host("b", ready=False, slots=0), Need(0, 0, frozenset())) is None
