"""The codes of the errors that operations have in common, by status."""

from collections.abc import Mapping

Codes = Mapping[int, tuple[str, ...]]


def together(*several: Codes) -> Codes:
    """The codes of all of them."""
    found: dict[int, tuple[str, ...]] = {}
    for codes in several:
        for status, names in codes.items():
            found[status] = tuple(dict.fromkeys((*found.get(status, ()), *names)))
    return found


# What any request may be answered with, and what any request with a key may.
ANY: Codes = {
    400: ("bad_request", "bad_framing"),
    405: ("method_not_allowed",),
    429: ("rate_limited",),
    500: ("internal",),
}
KEYED: Codes = {401: ("bad_key",), 403: ("forbidden",)}

BODY: Codes = {400: ("bad_field",), 408: ("request_too_slow",), 413: ("body_too_large",)}
QUERY: Codes = {400: ("bad_field",)}
HOSTS: Codes = {502: ("bad_host_reply",), 503: ("host_unreachable",), 504: ("host_slow",)}
FOUND: Codes = together(HOSTS, {404: ("not_found",), 503: ("ledger_full",)})
GUEST: Codes = together(
    FOUND,
    {
        409: ("wrong_state", "sandbox_paused", "sandbox_stopped"),
        500: ("engine_failed", "network_failed", "ledger_failed", "host_fault"),
        502: ("machine_died", "guest_failed"),
        503: ("draining", "no_capacity", "host_pressure"),
    },
)
STORE: Codes = {
    409: ("store_conflict",),
    500: ("hibernation_damaged", "hibernation_refused", "store_corrupt", "store_refused", "no_object"),
    503: ("store_unreachable", "store_full"),
}
WORKSPACE: Codes = together(
    STORE,
    {
        400: ("bad_field",),
        404: ("not_found",),
        409: ("wrong_state",),
        413: ("workspace_too_large",),
        500: ("workspace_damaged",),
        502: ("bad_archive",),
        503: ("workspace_unsaved", "no_capacity"),
    },
)
FILE: Codes = together(
    GUEST,
    {
        400: ("bad_field", "bad_path", "is_a_directory", "not_a_directory", "unknown_user"),
        403: ("permission_denied",),
        416: ("bad_range",),
    },
)
