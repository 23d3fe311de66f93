"""The words of a `git push`: what they ask for. Pure; used by the program that an agent's push becomes."""

from dataclasses import dataclass, field

# Options of git itself, before the name of the command, that are followed by a value.
GLOBAL_WITH_VALUE = ("-C", "-c", "--git-dir", "--work-tree", "--namespace", "--super-prefix", "--config-env")
_WITH_VALUE = ("--repo", "--receive-pack", "--exec", "-o", "--push-option")
_FORCES = ("--force", "--force-with-lease", "--force-if-includes", "--mirror", "--prune")
_MANY = ("--all", "--branches", "--tags", "--follow-tags")
_HARMLESS = (
    "--quiet",
    "--verbose",
    "--progress",
    "--no-progress",
    "--porcelain",
    "--thin",
    "--no-thin",
    "--atomic",
    "--no-atomic",
    "--no-verify",
    "--verify",
    "--no-force-with-lease",
    "--no-force-if-includes",
    "--no-follow-tags",
    "--no-tags",
    "--ipv4",
    "--ipv6",
    "--no-signed",
)


@dataclass(slots=True)
class Words:
    """A push as it was asked for. `problem` is `(rail, message)` if it can never be allowed."""

    context: list[str] = field(default_factory=list)
    remote: str | None = None
    refspecs: list[str] = field(default_factory=list)
    sets_upstream: bool = False
    is_help: bool = False
    is_dry: bool = False
    problem: tuple[str, str] | None = None

    def refuse(self, rail: str, message: str) -> None:
        self.problem = self.problem or (rail, message)


def parse(argv: list[str]) -> Words:
    """Read everything after `git`."""
    words = Words()
    rest = list(argv)
    while rest and rest[0].startswith("-"):
        words.context.append(rest.pop(0))
        if words.context[-1] in GLOBAL_WITH_VALUE and rest:
            words.context.append(rest.pop(0))
    _read_options(words, rest[1:])
    for refspec in words.refspecs:
        _check_refspec(words, refspec)
    if len(words.refspecs) > 1:
        words.refuse("shape", "push one branch at a time")
    return words


def _read_options(words: Words, rest: list[str]) -> None:
    positional: list[str] = []
    while rest:
        word = rest.pop(0)
        if word == "--":
            positional += rest
            break
        if word.startswith("--"):
            _read_long(words, word, rest)
        elif word.startswith("-") and len(word) > 1:
            _read_short(words, word, rest)
        else:
            positional.append(word)
    if positional:
        words.remote = positional.pop(0)
    words.refspecs = positional


def _read_long(words: Words, word: str, rest: list[str]) -> None:
    name, _, value = word.partition("=")
    if name in _HARMLESS:
        return
    if name == "--help":
        words.is_help = True
    elif name == "--dry-run":
        words.is_dry = True
    elif name == "--set-upstream":
        words.sets_upstream = True
    elif name == "--delete":
        words.refuse("delete", "a push may not delete a branch")
    elif name in _MANY:
        words.refuse("shape", f"{name}: push one branch at a time, and no tags")
    elif name in _WITH_VALUE:
        value = value or (rest.pop(0) if rest else "")
        words.refuse("shape", f"{name} is not possible here")
    elif any(each.startswith(name) for each in _FORCES) or name.startswith("--force"):
        words.refuse("force", f"{name}: a push may not rewrite history or delete what is there")
    else:
        # Git takes the beginning of an option for the whole, and newer ones have more of them: what is not known waits.
        words.refuse("shape", f"{name}: this option of push is not possible here")


def _read_short(words: Words, word: str, rest: list[str]) -> None:
    for at, letter in enumerate(word[1:], 1):
        if letter == "f":
            words.refuse("force", "-f: a push may not rewrite history")
        elif letter == "d":
            words.refuse("delete", "-d: a push may not delete a branch")
        elif letter == "u":
            words.sets_upstream = True
        elif letter == "n":
            words.is_dry = True
        elif letter == "h":
            words.is_help = True
        elif letter == "o":
            if at == len(word) - 1 and rest:
                rest.pop(0)
            words.refuse("shape", "-o is not possible here")
            return
        elif letter not in "qv46":
            words.refuse("shape", f"-{letter}: this option of push is not possible here")


def _check_refspec(words: Words, refspec: str) -> None:
    if refspec.startswith("+"):
        words.refuse("force", f"{refspec}: a push may not rewrite history")
    elif refspec.startswith(":"):
        words.refuse("delete", f"{refspec}: a push may not delete a branch")
    elif "*" in refspec or refspec == "tag":
        words.refuse("shape", f"{refspec}: push one branch at a time, and no tags")


def is_local(url: str) -> bool:
    """Whether an address is a folder of this machine, as git reads it: nothing that leaves it."""
    if "://" in url:
        return url.startswith("file://")
    if "::" in url:
        return False
    before_slash = url.split("/", 1)[0]
    return ":" not in before_slash
