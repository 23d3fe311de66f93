"""Operations on workspaces: what sandboxes have saved of their files, version by version."""

from contract import asked
from contract.keys import Scope
from contract.schema import closed, or_null
from gateway.operations import views
from gateway.operations.codes import BODY, GUEST, HOSTS, QUERY, WORKSPACE, together
from gateway.operations.operation import ZSTD, Operation, Reply, json_reply
from gateway.operations.sandboxes import ONE as SANDBOX

ALL = "/v1/workspaces"
ONE = f"{ALL}/{{workspace}}"
GROUP = "Workspaces"
OLDER = {"before": "`next` of the page before", "limit": "how many on a page"}

WORKSPACES = (
    Operation(
        "list_workspaces",
        "GET",
        ALL,
        GROUP,
        "List workspaces, by name",
        {
            200: json_reply(
                "a page",
                closed(
                    {
                        "workspaces": views.listed(views.ref("Workspace")),
                        "next": {**or_null(views.TEXT), "description": "`after` of the next page"},
                    }
                ),
            )
        },
        Scope.SANDBOXES,
        query=asked.WorkspacesAsked.read,
        means={"after": "`next` of the page before", "limit": "how many on a page"},
        errors=together(QUERY, HOSTS, WORKSPACE),
        example="limit=50",
    ),
    Operation(
        "get_workspace",
        "GET",
        ONE,
        GROUP,
        "Look at a workspace",
        {200: json_reply("its newest version", views.ref("Workspace"))},
        Scope.SANDBOXES,
        errors=together(HOSTS, WORKSPACE),
    ),
    Operation(
        "delete_workspace",
        "DELETE",
        ONE,
        GROUP,
        "Delete a workspace with all its versions",
        {200: json_reply("what it was", closed({"name": views.TEXT, "versions": views.COUNT}))},
        Scope.SANDBOXES,
        about="A sandbox that still has it saves it anew when it ends, as version 1. What was in it is removed from "
        "the store a day later.",
        errors=together(HOSTS, WORKSPACE),
    ),
    Operation(
        "list_versions",
        "GET",
        f"{ONE}/versions",
        GROUP,
        "List the versions of a workspace, newest first",
        {
            200: json_reply(
                "a page",
                closed(
                    {
                        "versions": views.listed(views.ref("Version")),
                        "next": {**or_null(views.COUNT), "description": "`before` of the next page"},
                    }
                ),
            )
        },
        Scope.SANDBOXES,
        query=asked.VersionsAsked.read,
        means=OLDER,
        errors=together(QUERY, HOSTS, WORKSPACE),
        example="limit=20",
    ),
    Operation(
        "diff_versions",
        "GET",
        f"{ONE}/diff",
        GROUP,
        "What is different between two versions",
        {
            200: json_reply(
                "the files, by path",
                closed(
                    {
                        "from": {**or_null(views.COUNT), "description": "null: nothing was there before"},
                        "to": views.COUNT,
                        "changes": views.listed(views.ref("Change")),
                        "truncated": {**views.FLAG, "description": "there are more changes than these"},
                        "text": {**or_null(views.TEXT), "description": "with `path`: a unified diff"},
                    }
                ),
            )
        },
        Scope.SANDBOXES,
        about="A file is changed if its content, mode, owner or the target of a link is another. With `path` only that "
        "file is told of, and `text` is what changed in it, if both are text of at most 1 MiB.",
        query=asked.DiffAsked.read,
        means={
            "from": "the earlier version; without it, what `to` was made from",
            "to": "the later version; without it, the newest",
            "path": "only this file, as it stands in `changes`",
            "limit": "how many changes",
        },
        errors=together(QUERY, HOSTS, WORKSPACE),
        example="from=1&to=3",
    ),
    Operation(
        "read_version",
        "GET",
        f"{ONE}/versions/{{version}}/archive",
        GROUP,
        "Read all files of a version",
        {200: Reply("a tar archive in zstd: one folder `workspace`", {ZSTD: views.BYTES})},
        Scope.SANDBOXES,
        about="If something of it is missing or damaged in the store, the reply breaks off.",
        errors=together(HOSTS, WORKSPACE),
    ),
    Operation(
        "restore_version",
        "POST",
        f"{ONE}/restore",
        GROUP,
        "Let an earlier version be the newest",
        {201: json_reply("a new version with its files", views.ref("Version"))},
        Scope.SANDBOXES,
        about="Nothing is lost: the versions in between stay. Sandboxes that run now are not touched.",
        body=asked.restored_version,
        means={"version": "whose files they are"},
        errors=together(BODY, HOSTS, WORKSPACE),
        example={"version": 2},
    ),
    Operation(
        "list_templates",
        "GET",
        "/v1/templates",
        GROUP,
        "List the templates that a workspace may begin with",
        {200: json_reply("all of them", closed({"templates": views.listed(views.ref("Template"))}))},
        Scope.SANDBOXES,
        errors=together(HOSTS, WORKSPACE),
    ),
    Operation(
        "save_workspace",
        "POST",
        f"{SANDBOX}/workspace/save",
        GROUP,
        "Save the workspace of a sandbox now",
        {200: json_reply("the version that has its files", views.SAVED)},
        Scope.SANDBOXES,
        about="If nothing has changed since the last version of this sandbox, there is no new one. It is also saved "
        "when the sandbox ends or is paused, and now and then while it runs.",
        body=asked.nothing,
        errors=together(BODY, GUEST, WORKSPACE),
    ),
)
