"""A short run of two real daemons. `python -m tests.histories` makes longer ones."""

from __future__ import annotations

from pathlib import Path

from tests.histories.run import run_history
from tests.store.postgres import PostgresServer, postgres_server

__all__ = ["postgres_server"]

# With this seed the receiver of the webhook responds with 404, the daemon that leads loses its
# link meanwhile, and then the next leader is killed.
SEED = 13056
DISTURBANCES = ("fail receiver", "lose link", "kill")


async def test_two_daemons_keep_their_promises_with_a_receiver_that_fails_a_lost_link_and_a_kill(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    judgement = await run_history(postgres_server, tmp_path, SEED, 0.0, disturbances=DISTURBANCES)
    assert [str(violation) for violation in judgement.violations] == []
    assert set(judgement.disturbances) == set(DISTURBANCES)
    assert judgement.operations["webhook 404"]
    kinds = {name.partition(" ")[0] for name in judgement.operations}
    assert kinds >= {"signing", "block", "event", "webhook", "leadership", "use", "revocation"}
    assert kinds >= {"chain", "source"}
