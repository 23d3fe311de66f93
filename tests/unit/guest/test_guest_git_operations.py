"""Operations: done once, whoever asks and however often."""

import asyncio

import pytest
from warren_guest.errors import RefusedError
from warren_guest.git.operations import KEPT, UNDER_WAY_LIMIT, Operations, Result
from warren_guest.git.reasons import reason_of, shown


class Work:
    def __init__(self, error: Exception | None = None) -> None:
        self.begun = self.ended = 0
        self.going = asyncio.Event()
        self.error = error

    async def __call__(self) -> Result:
        self.begun += 1
        try:
            await self.going.wait()
            if self.error is not None:
                raise self.error
            return {"number": self.begun}
        finally:
            self.ended += 1


async def until(operations: Operations, work: Work, *, begun: int) -> None:
    async with asyncio.timeout(10):
        while work.begun < begun:
            await asyncio.sleep(0)


async def test_who_leaves_does_not_end_it() -> None:
    operations, work = Operations(), Work()
    first = asyncio.create_task(operations.do("a", 1, work))
    await until(operations, work, begun=1)
    first.cancel()
    await asyncio.wait({first})
    second = asyncio.create_task(operations.do("a", 1, work))
    work.going.set()
    assert await second == {"number": 1}


async def test_what_nobody_waits_for_is_given_up_and_can_be_tried_again() -> None:
    operations, work = Operations(forsaken_s=0.01), Work()
    first = asyncio.create_task(operations.do("a", 1, work))
    await until(operations, work, begun=1)
    first.cancel()
    async with asyncio.timeout(10):
        while not work.ended:
            await asyncio.sleep(0.01)
    work.going.set()
    assert await operations.do("a", 1, work) == {"number": 2}


async def test_a_cancellation_is_told_to_who_waits_and_is_forgotten() -> None:
    operations, work = Operations(), Work()
    waiting = asyncio.create_task(operations.do("a", 1, work))
    await until(operations, work, begun=1)
    assert await operations.cancel("a") is True
    assert work.ended == 1
    with pytest.raises(RefusedError) as caught:
        await waiting
    assert caught.value.code == "cancelled"
    assert await operations.cancel("a") is False
    work.going.set()
    assert await operations.do("a", 1, work) == {"number": 2}


async def test_a_refusal_is_an_answer_and_a_bug_is_none() -> None:
    operations = Operations()
    refusing = Work(RefusedError("git_failed", "no"))
    bug = Work(ZeroDivisionError())
    for name, work, begun in (("a", refusing, 1), ("b", bug, 2)):
        work.going.set()
        for _ in range(2):
            with pytest.raises((RefusedError, ZeroDivisionError)):
                await operations.do(name, 1, work)
        assert work.begun == begun


async def test_the_last_ones_are_kept_and_no_more() -> None:
    operations, work = Operations(), Work()
    work.going.set()
    for number in range(KEPT + 5):
        await operations.do(str(number), 1, work)
    begun = work.begun
    await operations.do(str(KEPT + 4), 1, work)
    await operations.do("5", 1, work)
    assert work.begun == begun
    await operations.do("4", 1, work)
    assert work.begun == begun + 1


async def test_too_many_at_once_are_refused() -> None:
    operations, work = Operations(), Work()
    tasks = [asyncio.create_task(operations.do(str(n), 1, work)) for n in range(UNDER_WAY_LIMIT)]
    await until(operations, work, begun=UNDER_WAY_LIMIT)
    with pytest.raises(RefusedError) as caught:
        await operations.do("more", 1, work)
    assert caught.value.code == "too_many_operations"
    await operations.close()
    assert work.ended == UNDER_WAY_LIMIT
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("fatal: unable to access 'https://x/': gnutls_handshake() failed: Access was denied", "refused_by_network"),
        ("fatal: unable to access 'https://x/': Recv failure: Connection reset by peer", "refused_by_network"),
        ("fatal: unable to access 'http://x/': The requested URL returned error: 403", "forbidden"),
        ("fatal: Authentication failed for 'http://x/'", "authentication"),
        ("fatal: could not read Username for 'http://x': terminal prompts disabled", "authentication"),
        ("fatal: repository 'http://x/' not found", "not_found"),
        ("warning: Could not find remote branch x\nfatal: Remote branch x not found in upstream", "ref_not_found"),
        ("fatal: unable to access 'http://x/': Could not resolve host: x", "unreachable"),
        ("fatal: unable to access 'https://x/': server certificate verification failed. CAfile: none", "tls"),
        ("fatal: write error: No space left on device", "disk_full"),
        ("fatal: early EOF\nfatal: fetch-pack: invalid index-pack output", "cut_off"),
        ("something else", "other"),
    ],
)
def test_what_git_says_has_a_reason(said: str, reason: str) -> None:
    assert reason_of(said)[0] == reason


def test_what_is_shown_is_short_printable_and_without_secrets() -> None:
    text = shown("fatal: a\x1b[31m\r\n" + "error: tok-tok-user\n" + "x" * 10_000 + " tok", ("tok", "", "tok-user"))
    assert len(text) <= 601
    assert "tok" not in text
    assert "\x1b" not in shown("a\x1b[0m")
    assert shown("remote: tok-tok-user", ("tok", "tok-user")) == "remote: ***-***"
