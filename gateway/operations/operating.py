"""Operations on the cluster: its keys, its hosts, what was used, and these documents."""

from contract.keys import KeyAsked, Scope
from contract.schema import closed
from gateway.operations import views
from gateway.operations.codes import BODY, HOSTS
from gateway.operations.operation import HTML, Operation, Reply, json_reply

OPERATING = (
    Operation(
        "list_hosts",
        "GET",
        "/v1/hosts",
        "Operating",
        "List the hosts",
        {200: json_reply("all that this gateway knows of", closed({"hosts": views.listed(views.ANYTHING)}))},
        Scope.ADMIN,
    ),
    Operation(
        "get_usage",
        "GET",
        "/v1/usage",
        "Operating",
        "What was used: vCPU-seconds, GiB-seconds, bytes sent",
        {
            200: json_reply(
                "the owner's sums; for an admin key, everybody's",
                closed({"owners": views.listed(views.ref("Usage")), "incomplete": views.listed(views.TEXT)}),
            )
        },
        Scope.SANDBOXES,
        errors=HOSTS,
    ),
    Operation(
        "create_key",
        "POST",
        "/v1/keys",
        "Keys",
        "Make a key",
        {201: json_reply("the key and its secret, which is shown this once", views.NEW_KEY)},
        Scope.ADMIN,
        body=KeyAsked.read,
        means={
            "owner": "whose key it is: all keys of an owner see the same sandboxes and share its pools",
            "name": "for people",
            "plan": "for people",
            "pools": "what all sandboxes of the owner may have together, paused ones included",
            "scopes": "what it is good for; without it, `sandboxes` and `tasks`",
            "rate": "requests a second at each gateway; twice as many at once",
            "expires_ms": "when it ends; without it, never",
        },
        errors=BODY,
        example={"owner": "red", "name": "laptop"},
    ),
    Operation(
        "list_keys",
        "GET",
        "/v1/keys",
        "Keys",
        "List the keys, without their secrets",
        {200: json_reply("all keys", closed({"keys": views.listed(views.ref("Key"))}))},
        Scope.ADMIN,
    ),
    Operation(
        "healthz",
        "GET",
        "/healthz",
        "Operating",
        "The gateway works",
        {200: json_reply("it does", closed({"ok": views.FLAG}))},
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
