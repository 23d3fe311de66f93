"""Command lines of git, in surroundings in which nothing of a repository, a home or a machine changes what it does.

All settings go through the environment, where they win over every file. None of them is a secret: credentials are on a
pipe that git's helper reads once, and nowhere else. No program that git starts gets more rights than git has.
"""

from collections.abc import Mapping

from warren_guest.accounts import Account
from warren_guest.git.asked import Author, Credentials, origin_of
from warren_guest.git.places import real_git
from warren_guest.spawn import Program

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Standard input becomes descriptor 9, which all that git starts inherits and only the helper reads.
_WITH_PIPE = ("sh", "-c", 'exec 9<&0 </dev/null; exec "$@"', "sh")
_HELPER = '!f() { test "$1" = get && cat <&9; }; f'

# What a repository or a home may say, and what would make git run a program or ask a person.
_SETTINGS = {
    "advice.addEmbeddedRepo": "false",
    "advice.detachedHead": "false",
    "commit.gpgSign": "false",
    "core.askPass": "",
    "core.editor": "true",
    "core.fsmonitor": "false",
    "core.hooksPath": "/dev/null",
    "core.pager": "cat",
    "core.sshCommand": "false",
    "core.untrackedCache": "false",
    "credential.helper": "",
    "diff.external": "",
    "fetch.recurseSubmodules": "false",
    "gc.auto": "0",
    "gpg.program": "false",
    "log.showSignature": "false",
    "log.mailmap": "false",
    "maintenance.auto": "false",
    "push.followTags": "false",
    "push.gpgSign": "false",
    "push.recurseSubmodules": "no",
    "safe.directory": "*",
    "submodule.recurse": "false",
    "user.useConfigOnly": "false",
}
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


def _settings(values: Mapping[str, str]) -> dict[str, str]:
    """Settings as git reads them from its environment: before every file, with the last word."""
    env = {"GIT_CONFIG_COUNT": str(len(values))}
    for number, (key, value) in enumerate(values.items()):
        env |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return env


def _surroundings(protocols: str, settings: Mapping[str, str]) -> dict[str, str]:
    return {
        "LC_ALL": "C.UTF-8",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ALLOW_PROTOCOL": protocols,
        "GIT_SSH_COMMAND": "false",
        "GIT_PAGER": "cat",
        "GIT_EDITOR": "true",
        "GIT_LFS_SKIP_SMUDGE": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        **_settings({**_SETTINGS, **settings}),
    }


def by_keeper(
    keeper: Account,
    folder: str,
    *arguments: str,
    protocols: str = "none",
    url: str | None = None,
    credentials: Credentials | None = None,
    machine: Mapping[str, str] | None = None,
) -> Program:
    """Git as the account that holds credentials, in `folder`, which is its own. Feed it `credentials.for_helper()`.

    Git gives the credentials to the origin of `url` and to no other, wherever a server may lead it.
    """
    helper = {f"credential.{origin_of(url)}.helper": _HELPER} if url and credentials else {}
    env = {
        "PATH": PATH,
        "HOME": folder,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_ATTR_NOSYSTEM": "1",
        **{name: value for name, value in (machine or {}).items() if name in _PROXIES},
        **_surroundings(protocols, {"http.followRedirects": "initial", **helper}),
    }
    argv = (*(_WITH_PIPE if helper else ()), real_git(), *arguments)
    return Program(argv[0], argv[1:], env, folder, keeper, stdin=bool(helper), no_new_privs=True)


def by_user(
    account: Account,
    env: Mapping[str, str],
    cwd: str,
    *arguments: str,
    author: Author | None = None,
    is_clean: bool = False,
    stdin: bool = False,
    more: Mapping[str, str] | None = None,
) -> Program:
    """Git as `account` in a workspace. With `is_clean` no configuration of the machine or its home counts."""
    surroundings = _user_env(env, author, is_clean, more or {})
    return Program(real_git(), arguments, surroundings, cwd, account, stdin=stdin, no_new_privs=True)


def script_by_user(account: Account, env: Mapping[str, str], cwd: str, script: str, *arguments: str) -> Program:
    """A short shell script in a workspace, which calls git as `$GIT`."""
    surroundings = _user_env(env, None, False, {"GIT": real_git()})
    return Program("sh", ("-c", script, "sh", *arguments), surroundings, cwd, account, no_new_privs=True)


def _user_env(env: Mapping[str, str], author: Author | None, is_clean: bool, more: Mapping[str, str]) -> dict[str, str]:
    # What a caller gave the sandbox must not point git at another repository, or at another program.
    kept = {name: value for name, value in env.items() if not name.startswith("GIT_")}
    clean = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"} if is_clean else {}
    return {**kept, **clean, **_surroundings("file" if is_clean else "none", {}), **_names(author), **more}


def _names(author: Author | None) -> dict[str, str]:
    if author is None:
        return {}
    return {
        f"GIT_{who}_{what}": value
        for who in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", author.name), ("EMAIL", author.email))
    }
