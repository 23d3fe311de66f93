"""A sandbox ends when its time is up or when it is destroyed, once and for all, and lists say what there is."""

from tests.bench.host import Host
from tests.vm import traces
from tests.vm.client import Api, Sandbox, until


def test_a_sandbox_whose_time_is_up_is_stopped_and_says_why(host: Host, api: Api) -> None:
    with api.sandbox(timeout_sec=1) as sandbox:
        machine = traces.ledger_machine(host.state, sandbox.id)
        until(lambda: sandbox.view["state"] == "stopped", limit_s=5)
        view = sandbox.view
        assert view["reason"] == "its time was up"
        assert 0 <= view["ended_ms"] - view["expires_ms"] < 2_000
        assert sandbox.execute(["true"]).refusal == (409, "wrong_state")
        until(lambda: machine not in traces.folders(host.state) | traces.machines(host.state).keys())


def test_destroying_twice_is_the_same_as_once(api: Api) -> None:
    sandbox = api.create()
    first, second = sandbox.destroy(), sandbox.destroy()
    assert (first.status, second.status) == (200, 200)
    assert first.json == second.json == sandbox.view
    assert (first.json["state"], first.json["reason"]) == ("stopped", "destroyed by request")
    assert sandbox.execute(["true"]).refusal == (409, "wrong_state")
    assert sandbox.get("/etc/hostname").refusal == (409, "wrong_state")


def test_a_command_in_a_sandbox_that_is_destroyed_ends_with_an_error_and_no_exit(sandbox: Sandbox) -> None:
    with sandbox.follow("echo begun; sleep 1000") as events:
        assert [next(events)[0] for _ in range(2)] == ["start", "stdout"]
        assert sandbox.destroy().status == 200
        assert [kind for kind, _ in events] == ["error"]


def test_a_list_comes_in_pages_newest_first_and_by_state(api: Api) -> None:
    with api.sandbox() as first, api.sandbox() as second, api.sandbox() as third:
        assert api.ids()[:3] == [third.id, second.id, first.id]
        page = api.call("GET", "/v1/sandboxes?limit=2").json
        assert [view["id"] for view in page["sandboxes"]] == [third.id, second.id]
        assert page["next"] == f"{second.created['created_ms']}.{second.id}"
        rest = api.call("GET", f"/v1/sandboxes?limit=1000&before={page['next']}").json
        assert (rest["sandboxes"][0]["id"], rest["next"]) == (first.id, None)
        second.destroy()
        assert api.ids()[:2] == [third.id, first.id]
        assert second.id in api.ids(state="stopped")
        assert second.id not in api.ids(state="running,error")
        assert {first.id, second.id, third.id} <= set(api.ids(state="stopped,running"))
