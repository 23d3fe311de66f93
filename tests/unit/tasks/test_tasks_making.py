"""What a task that is tried again has of the one before."""

import pytest

from poold.tasks.making import is_same_server, with_former
from poold.tasks.urls import Credentials
from poold.tasks.vault import Kept

OLD, NEW = Credentials("me", "old"), Credentials("me", "new")
REPO = "https://git.example.com/a.git"


def test_a_repetition_has_what_was_given_anew_and_the_rest_of_the_former() -> None:
    former = Kept(credentials=OLD, env={"A": "1", "B": "2"}, webhook_secret="s")
    assert with_former(Kept(env={"B": "3"}), former, same_server=True) == Kept(OLD, {"A": "1", "B": "3"}, "s")
    assert with_former(Kept(credentials=NEW), former, same_server=True).credentials == NEW


def test_credentials_are_shown_to_no_other_server() -> None:
    assert with_former(Kept(), Kept(credentials=OLD), same_server=False).credentials is None


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (REPO, True),
        ("https://git.example.com:443/b.git", True),
        ("https://GIT.example.com/b.git", True),
        ("http://git.example.com/a.git", False),
        ("https://git.example.com:8443/a.git", False),
        ("https://git.example.com.evil.example/a.git", False),
        (None, False),
    ],
)
def test_a_server_is_the_same_by_scheme_name_and_port(other: str | None, same: bool) -> None:
    assert is_same_server(REPO, other) is same
    assert is_same_server(other, REPO) is same
