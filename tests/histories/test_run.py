"""A short run of two real daemons. `python -m tests.histories` makes longer ones."""

from __future__ import annotations

from pathlib import Path

from tests.histories.run import run_history
from tests.store.postgres import PostgresServer, postgres_server

__all__ = ["postgres_server"]

# With this seed the daemon that leads loses its link, and then the next leader is killed.
SEED = 4


async def test_two_daemons_keep_their_promises_while_a_link_is_lost_and_one_is_killed(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    judgement = await run_history(
        postgres_server, tmp_path, SEED, 0.0, disturbances=("lose link", "kill")
    )
    assert [str(violation) for violation in judgement.violations] == []
    assert set(judgement.disturbances) == {"lose link", "kill"}
    kinds = {name.partition(" ")[0] for name in judgement.operations}
    assert kinds >= {"signing", "block", "event", "webhook", "leadership", "use", "revocation"}
