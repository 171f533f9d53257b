"""Bodies of many clients that are ready at once are parsed in several turns of the event loop."""

from __future__ import annotations

import asyncio

from warpseal.api.http.request_body import PARSING_S, ParsingTurns


async def test_a_turn_parses_for_ten_milliseconds_and_bodies_are_parsed_in_their_order() -> None:
    now_s, turn = 0.0, 0
    turns: list[int] = []

    def parse(body: bytes) -> bytes:
        nonlocal now_s
        now_s += 0.004
        turns.append(turn)
        return body

    async def count_turns() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    parsing = ParsingTurns(lambda: now_s)
    counter = asyncio.create_task(count_turns())
    bodies = [b"%d" % number for number in range(50)]
    assert await asyncio.gather(*(parsing.parse(parse, body) for body in bodies)) == bodies
    counter.cancel()
    most = max(turns.count(number) for number in turns)
    assert (most - 1) * 0.004 < PARSING_S <= most * 0.004
    assert len(set(turns)) == 17


async def test_a_parser_that_fails_or_is_cancelled_while_it_waits_holds_up_no_other() -> None:
    now_s = 0.0

    def parse(body: bytes) -> bytes:
        nonlocal now_s
        now_s += 1.0
        if body == b"bad":
            raise ValueError
        return body

    parsing = ParsingTurns(lambda: now_s)
    tasks = [asyncio.create_task(parsing.parse(parse, body)) for body in (b"1", b"bad", b"2", b"3")]
    await asyncio.sleep(0)
    tasks[2].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [results[0], type(results[1]), type(results[2]), results[3]] == [
        b"1",
        ValueError,
        asyncio.CancelledError,
        b"3",
    ]
