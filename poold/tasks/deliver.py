"""Answers, delivered to whoever waits for them. Each is written down before, so that it may be delivered again."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from contract.errors import CallerError, WarrenError
from contract.network import HostRule, Mode, NetRule, Network
from contract.task_states import TaskEvent
from poold.errors import GuestRefused
from poold.ledger import questions
from poold.ledger.questions import Question
from poold.ledger.tasks import Row
from poold.tasks.life import Life, ask
from poold.tasks.pushing import push

log = logging.getLogger("poold.tasks")

AGAIN_S = 1.0


async def deliver_all(life: Life) -> None:
    """Deliver answers whenever there are some, in their order. Until it is cancelled."""
    while True:
        await life.to_deliver.wait()
        life.to_deliver.clear()
        try:
            row = await life.row()
            for question in await life.tools.read(partial(questions.undelivered, task_id=life.id)):
                await deliver(life, row, question)
        except WarrenError as error:  # the steering sees that there are some still
            log.warning("an answer was not delivered", extra={"task": life.id, "why": str(error)})
            await asyncio.sleep(AGAIN_S)
        life.wake()


async def deliver(life: Life, row: Row, question: Question) -> None:
    """Let the answer have its effect. If this raises, it is tried again."""
    match question.kind:
        case "spend":
            await _spend(life, question)
        case "host":
            await _host(life, row, question)
        case "push" if question.id.startswith("hp-"):
            pass  # who asked reads the answer in the ledger
        case "push":
            await _push(life, row, question)
        case _:
            await _tell_agent(life, row, question.id, question.answer or "", question.answer_text or "")
    await life.write(partial(questions.done, task_id=life.id, question_id=question.id))


async def _spend(life: Life, question: Question) -> None:
    if question.answer == "reject":
        figures: dict[str, Any] = question.arguments if isinstance(question.arguments, dict) else {}
        reason = {"code": "stopped", "message": "a person said that it may not spend more", **figures}
        await life.end(TaskEvent.STOP, reason)


async def _host(life: Life, row: Row, question: Question) -> None:
    """A host that was approved is allowed from now on. What waits for one that was not is refused in its time."""
    if question.answer != "approve" or row.task.sandbox is None:
        return
    sandbox = await life.tools.sandboxes.get(row.task.sandbox)
    try:
        await life.tools.sandboxes.set_network(sandbox.id, allowing(sandbox.network, question.arguments), life.caller)
    except CallerError as error:  # what no policy can have: to try it again would keep all other answers waiting
        log.warning("a host was approved in vain", extra={"task": life.id, "why": error.message})
        await life.tell("approval.undelivered", {"id": question.id, "kind": "approve", "why": error.message})


def allowing(network: Network, asked: Mapping[str, Any]) -> Network:
    """The policy that allows what was asked about, too. What is allowed already is not written down twice."""
    name, address, port = asked["name"], asked["address"], asked["port"]
    if network.policy is Mode.DENY:
        network = replace(network, policy=Mode.LIST)
    if name:
        return replace(network, allow=tuple(dict.fromkeys((*network.allow, HostRule(name, (port,))))))
    nets = (*network.allow_addresses, NetRule(f"{address}/32", port))
    return replace(network, allow_addresses=tuple(dict.fromkeys(nets)))


async def _push(life: Life, row: Row, question: Question) -> None:
    """The agent's own push: done here, in its place, and then it is told what came of it."""
    answer, text = question.answer or "reject", question.answer_text or "it was rejected"
    if answer == "approve":
        asked = question.arguments if isinstance(question.arguments, dict) else {}
        told = await push(life, row.task, f"{life.id}:push:{question.id}", asked.get("branch"), asked.get("commit"))
        answer = "reject" if "refused" in told else "approve"
        text = told.get("message") or f"pushed {told['branch']}: {told.get('to')}"
    await _tell_agent(life, row, question.id, answer, text)


async def _tell_agent(life: Life, row: Row, question_id: str, kind: str, text: str) -> None:
    try:
        async with life.inside(row.task.sandbox or "") as guest:
            await ask(guest, "POST", "/run/input", {"kind": kind, "id": question_id, "text": text})
    except GuestRefused as error:  # nobody waits for it any more, or the agent cannot be told anything
        log.info("an answer was not wanted", extra={"task": life.id, "question": question_id, "why": error.message})
        await life.tell("approval.undelivered", {"id": question_id, "kind": kind, "why": error.message})
