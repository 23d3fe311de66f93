"""What git said, in words that people can act on. Pure: from text to text."""

import re

_TOLD = 600
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
_PREFIX = re.compile(r"^(?:fatal|error|warning): ")

# The first that matches counts. Servers and proxies answer 403 alike, so both are named.
_REASONS: tuple[tuple[str, str, str], ...] = (
    (
        r"access (?:was )?denied|access_denied|TLS fatal alert|error: 403.*Warren|Connection reset by peer",
        "refused_by_network",
        "the machine's network policy, or the server, does not let it through; allow the host of this address",
    ),
    (r"error: 407|CONNECT tunnel failed", "refused_by_network", "the proxy refused it; allow the host of this address"),
    (
        r"Authentication failed|Invalid username or|error: 401",
        "authentication",
        "the server does not accept these credentials",
    ),
    (r"could not read (?:Username|Password)", "authentication", "the server wants credentials, and there are none"),
    (
        r"error: 403|unable to access.*403",
        "forbidden",
        "the server, or the machine's network policy, forbids it (403)",
    ),
    (
        r"repository '.*' not found|error: 404|does not appear to be a git repository|not valid: is this a git rep",
        "not_found",
        "there is no repository at this address, or these credentials may not see it",
    ),
    (
        r"Remote branch .* not found|couldn't find remote ref|not our ref|no such remote ref|upload-pack: not our",
        "ref_not_found",
        "the repository has no such branch, tag or commit",
    ),
    (r"Could(?: not|n't) resolve", "unreachable", "the name of the server is not known"),
    (
        r"Failed to connect|Connection refused|Couldn't connect|timed out|No route",
        "unreachable",
        "nothing answers there",
    ),
    (r"certificate|SSL|TLS|gnutls", "tls", "the server's certificate or TLS is not one that this machine trusts"),
    (r"transport '.*' not allowed|Protocol .* (?:not supported|disabled)", "bad_protocol", "only http and https are"),
    (r"No space left|Disk quota", "disk_full", "the machine's disk is full"),
    (r"early EOF|unexpected disconnect|hung up|RPC failed|invalid index-pack", "cut_off", "the connection broke off"),
)


def reason_of(errors: str) -> tuple[str, str]:
    """`(reason, explanation)` of what git complained about."""
    for pattern, reason, explanation in _REASONS:
        if re.search(pattern, errors, re.IGNORECASE):
            return reason, explanation
    return "other", "git failed"


def shown(errors: str, secrets: tuple[str, ...] = ()) -> str:
    """The end of what git said: bounded, printable, and without anything that is secret."""
    text = _CONTROL.sub(" ", hidden(errors, secrets))
    lines = [_PREFIX.sub("", line.strip()) for line in text.splitlines() if line.strip()]
    told = "; ".join(lines)
    return told if len(told) <= _TOLD else "…" + told[-_TOLD:]


def hidden(text: str, secrets: tuple[str, ...]) -> str:
    """A server may say what it was told, and git repeats what a server says."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text
