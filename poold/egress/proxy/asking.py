"""Questions for names, by UDP and TCP. No question ever leaves: allowed names have addresses that we made up."""

import asyncio
import time
from typing import cast

from poold.egress.names import canonical
from poold.egress.policy import may_ask
from poold.egress.proxy.ends import End
from poold.egress.proxy.fakes import Fakes
from poold.egress.proxy.gate import Gate
from poold.egress.proxy.limits import Bucket
from poold.egress.wire.dns import CLASS_IN, KIND_A, BadQuestion, Question, answer, form_error, read_question, refuse

TTL_S = 30
QUESTIONS_PER_S = 500
TCP_IDLE_S = 30.0


class Answers:
    """What is said to questions. Never raises."""

    def __init__(self, gate: Gate, fakes: Fakes) -> None:
        self._gate = gate
        self._fakes = fakes
        self._bucket = Bucket(QUESTIONS_PER_S, time.monotonic())

    def reply(self, packet: bytes) -> bytes | None:
        """The answer to a question, if it gets one."""
        if not self._bucket.has_one(time.monotonic()):
            self._gate.refused("dns", "too_fast")
            return None
        try:
            question = read_question(packet)
        except BadQuestion:
            self._gate.refused("dns", "bad_request")
            return form_error(packet)
        return self._answer(question)

    def _answer(self, question: Question) -> bytes:
        if question.klass != CLASS_IN or question.name.endswith(".arpa"):
            return refuse(question)  # machines ask this by themselves
        name = canonical(question.name)
        if name is None or not may_ask(self._gate.policy, name):
            self._gate.refused("dns", "bad_name" if name is None else "policy", name=question.name)
            return refuse(question)
        address = str(self._fakes.address_of(name)) if question.kind == KIND_A else None
        return answer(question, address, TTL_S)


class Datagrams(asyncio.DatagramProtocol):
    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._transport: asyncio.DatagramTransport | None = None
        self._is_full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        reply = self._answers.reply(data)
        # Whoever does not take answers gets none: they are not kept.
        if reply is not None and self._transport is not None and not self._is_full:
            self._transport.sendto(reply, addr)

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False


async def serve_stream(client: End, answers: Answers) -> None:
    """Answer the questions on one TCP connection, until it is idle or ends."""
    while True:
        async with asyncio.timeout(TCP_IDLE_S):
            while len(client.data) < 2 or len(client.data) < 2 + int.from_bytes(client.data[:2]):
                if not await client.more():
                    return
            packet = client.take(2 + int.from_bytes(client.data[:2]))[2:]
            reply = answers.reply(packet)
            if reply is None:
                return
            await client.send(len(reply).to_bytes(2) + reply)
