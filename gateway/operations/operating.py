"""Operations on the cluster: its keys, its hosts, what was used, and these documents."""

from contract import asked
from contract.keys import KeyAsked, Scope, rotation_grace
from contract.schema import closed
from gateway.operations import views
from gateway.operations.codes import BODY, HOSTS, KEYED, QUERY, Codes, together
from gateway.operations.operation import HTML, PLAIN, Operation, Reply, json_reply

NEW_KEY = json_reply(
    "the key and its secret, which is shown this once",
    views.NEW_KEY,
    headers={"Location": "where the key is"},
    links=("get_key", "rotate_key", "revoke_key"),
    linked="key_id",
)
REGISTRY: Codes = {503: ("registry_unreachable",)}
NO_KEY: Codes = together(REGISTRY, {404: ("not_found",)})
KEY = "/v1/keys/{key_id}"

OPERATING = (
    Operation(
        "list_hosts",
        "GET",
        "/v1/hosts",
        "Operating",
        "List the hosts",
        {200: json_reply("all that this gateway knows of", closed({"hosts": views.listed(views.ref("Host"))}))},
        Scope.ADMIN,
    ),
    Operation(
        "get_usage",
        "GET",
        "/v1/usage",
        "Operating",
        "What was used: vCPU-seconds, GiB-seconds, bytes sent",
        {200: json_reply("sums since the beginning of the records", views.USED)},
        Scope.SANDBOXES,
        about="`incomplete` names the hosts that could not be asked.",
        query=asked.whose,
        means={"owner": "for an admin: another owner's, or everybody's with `*`"},
        errors=together(QUERY, HOSTS),
    ),
    Operation(
        "create_key",
        "POST",
        "/v1/keys",
        "Keys",
        "Make a key",
        {201: NEW_KEY},
        Scope.ADMIN,
        body=KeyAsked.read,
        means={
            "owner": "whose key it is: all keys of an owner see the same sandboxes and share its pools",
            "name": "for people",
            "plan": "for people",
            "pools": "what all sandboxes of the owner may have together, paused ones included",
            "scopes": "what it is good for; without it, `sandboxes` and `tasks`; an empty list is good for nothing",
            "rate": "requests a second at each gateway; twice as many at once",
            "expires_ms": "when it ends; without it, never",
            "network": "what the sandboxes that it makes may reach: if they ask for nothing else, and at most. The "
            "fields are those of `PUT …/network`; at most 4,096 bytes of JSON",
        },
        errors=together(BODY, REGISTRY),
        example={"owner": "red", "name": "laptop"},
    ),
    Operation(
        "list_keys",
        "GET",
        "/v1/keys",
        "Keys",
        "List the keys, without their secrets",
        {200: json_reply("all keys, oldest first", closed({"keys": views.listed(views.ref("Key"))}))},
        Scope.ADMIN,
        errors=REGISTRY,
    ),
    Operation(
        "get_key",
        "GET",
        KEY,
        "Keys",
        "Look at a key",
        {200: json_reply("the key, without its secret", views.ref("Key"))},
        Scope.ADMIN,
        errors=NO_KEY,
    ),
    Operation(
        "revoke_key",
        "DELETE",
        KEY,
        "Keys",
        "Revoke a key",
        {200: json_reply("the key, which opens nothing any more", views.ref("Key"))},
        Scope.ADMIN,
        about="Here at once, at other gateways within 5 seconds. Revoking it again changes nothing.",
        errors=NO_KEY,
    ),
    Operation(
        "rotate_key",
        "POST",
        f"{KEY}/rotate",
        "Keys",
        "Give a key a new secret",
        {201: NEW_KEY},
        Scope.ADMIN,
        about="The new key may do what the old one may.",
        body=rotation_grace,
        means={"grace_sec": "how long the old one goes on working, in seconds; with 0 it is revoked at once"},
        errors=together(BODY, NO_KEY, {409: ("wrong_state",)}),
        example={"grace_sec": 3600},
    ),
    Operation(
        "healthz",
        "GET",
        "/healthz",
        "Operating",
        "The gateway works",
        {200: json_reply("it does", closed({"ok": views.FLAG, "name": views.TEXT}))},
    ),
    Operation(
        "readyz",
        "GET",
        "/readyz",
        "Operating",
        "The gateway can serve",
        {200: json_reply("it knows of a host that lives", closed({"ready": views.FLAG}))},
        errors={503: ("not_ready",)},
    ),
    Operation(
        "metrics",
        "GET",
        "/metrics",
        "Operating",
        "Figures for Prometheus",
        {200: Reply("every name begins with `gateway_`", {PLAIN: views.TEXT})},
        about="For a key with the scope `admin`, or without a key from the gateway's own machine.",
        errors=KEYED,
    ),
)

PAGES = (
    Operation(
        "openapi",
        "GET",
        "/openapi.json",
        "This document",
        "This document, for programs",
        {200: json_reply("OpenAPI 3.1", views.ANYTHING)},
    ),
    Operation(
        "docs", "GET", "/docs", "This document", "This document, for people", {200: Reply("a page", {HTML: views.TEXT})}
    ),
)
