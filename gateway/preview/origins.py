"""Whose page asks, as its browser says. No I/O."""

from typing import Any

from gateway.preview.where import Where

SAFE = ("GET", "HEAD")  # what changes nothing; whether another origin may read the answer, the service says (CORS)


def is_from_elsewhere(found: Where, scope: Any) -> bool:
    """Whether a page that is not of this preview asks for more than to read.

    Previews beside each other are one site, so a browser sends a visitor's pass whichever of them asks. It tells no
    origin where a page wants no referrers: then it says in another header whether it is the same.
    """
    if scope["type"] == "http" and scope["method"] in SAFE:
        return False
    told = {value for name, value in scope["headers"] if name == b"origin"}
    sites = [value for name, value in scope["headers"] if name == b"sec-fetch-site"]
    if told == {b"null"} and sites == [b"same-origin"]:
        return False
    own = found.origin.encode("latin-1")
    # Where something in front of us ends TLS, pages are of https and we are asked over http.
    return not told <= {own, own.replace(b"http://", b"https://", 1)}
