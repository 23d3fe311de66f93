"""The rails: which pushes are refused, whoever asks. Pure; each refusal has the name of its rail."""

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass

from warren_guest.errors import RefusedError
from warren_guest.git.asked import Author

_HEADS = "refs/heads/"


@dataclass(frozen=True, slots=True)
class Policy:
    """What may be pushed: to `url`, nothing that is protected, and only commits of `author`."""

    url: str | None
    protected: tuple[str, ...]
    author: Author | None


@dataclass(frozen=True, slots=True)
class Made:
    """Who made a commit."""

    commit: str
    author: Author
    committer: Author


def refused(rail: str, message: str) -> RefusedError:
    return RefusedError("push_refused", message, facts={"rail": rail})


def is_protected(branch: str, protected: Iterable[str]) -> bool:
    """Whether a pattern like `main` or `release/*` means `branch`; `*` does not stop at a slash."""
    name = branch.removeprefix(_HEADS)
    return any(fnmatch.fnmatchcase(name, pattern.removeprefix(_HEADS)) for pattern in protected)


def check_branch(branch: str, policy: Policy) -> None:
    if is_protected(branch, policy.protected):
        raise refused("protected", f"{branch} is protected ({', '.join(policy.protected)}); push another branch")


def check_history(branch: str, *, is_forward: bool) -> None:
    if not is_forward:
        message = f"{branch} has commits on the server that are not in this one: its history would be rewritten"
        raise refused("not_fast_forward", message)


def check_makers(made: Iterable[Made], policy: Policy) -> None:
    """Every commit that would be new on the server was made by the policy's author."""
    if policy.author is None:
        return
    for each in made:
        for role, who in (("author", each.author), ("committer", each.committer)):
            if who != policy.author:
                wanted = f"{policy.author.name} <{policy.author.email}>"
                found = f"{who.name[:100]} <{who.email[:100]}>"
                raise refused("author", f"commit {each.commit[:12]} has the {role} {found}; only {wanted} may push")
