"""Operations on what a sandbox may reach, and on what it did reach."""

from contract import asked
from contract.keys import Scope
from contract.network import Network
from contract.schema import closed
from gateway.operations import views
from gateway.operations.codes import BODY, FOUND, GUEST, QUERY, together
from gateway.operations.operation import JSON, STREAM, Operation, Reply, json_reply
from gateway.operations.sandboxes import ONE

NETWORK_MEANS = {
    "policy": "`deny`: nothing; `registries`: where the host's own clients get packages; `list`: what is allowed here; "
    "`open`: every public address. Without it, `list` if something is allowed here, else `deny`",
    "allow": "names that may be reached besides: `example.com`, or `*.example.com` for all below it, at ports 80 and "
    "443 unless `ports` says others. With `methods` or `paths` only by plain HTTP; a path may end in `*`",
    "allow_addresses": "addresses of IPv4 that may be reached besides, as a network and a port",
    "hold_sec": "for so long a connection that nothing allows waits for somebody to change the policy",
    "limits": "how much of the network it may use; without one, as the host has it",
}

NETWORK = (
    Operation(
        "get_network",
        "GET",
        f"{ONE}/network",
        "Network",
        "What a sandbox may reach",
        {
            200: json_reply(
                "its own policy, and those that hold as well",
                closed({"network": views.ref("Network"), "within": views.listed(views.WITHIN)}),
            )
        },
        Scope.SANDBOXES,
        about="What one of them refuses is refused: those of the host, of the key and of the image can only take away.",
        errors=FOUND,
    ),
    Operation(
        "set_network",
        "PUT",
        f"{ONE}/network",
        "Network",
        "Change what a sandbox may reach",
        {200: json_reply("the sandbox", views.ref("Sandbox"))},
        Scope.SANDBOXES,
        about="The body is the whole policy: nothing of the former one is kept. It is in force when this is answered, "
        "and connections that it does not allow have been cut. That of a paused sandbox counts from its resume on.",
        body=Network.read,
        means=NETWORK_MEANS,
        errors=together(BODY, GUEST),
        example={"policy": "list", "allow": [{"host": "example.com"}, {"host": "*.example.org", "ports": [443]}]},
    ),
    Operation(
        "get_egress",
        "GET",
        f"{ONE}/egress",
        "Network",
        "Read or follow its connections",
        {
            200: Reply(
                "the connections behind number `after`, and those that are open now",
                {
                    JSON: closed(
                        {
                            "rows": views.listed(views.ref("EgressRow")),
                            "open": views.listed(views.ref("EgressOpen")),
                        }
                    ),
                    STREAM: views.EVENT_STREAM_TEXT,
                },
            )
        },
        Scope.SANDBOXES,
        about="Each is a row when it is over, or was refused. With `Accept: text/event-stream` the rows come as they "
        "are written, as events `row`, until the sandbox has ended. `Last-Event-ID` goes on where an earlier stream "
        "broke off.",
        query=asked.EgressAsked.read,
        means={
            "after": "the number (`seq`) of the last row that you have",
            "limit": "how many on a page",
            "verdict": "only those that were allowed, or refused",
        },
        errors=together(QUERY, FOUND),
        example="verdict=refused",
    ),
)
