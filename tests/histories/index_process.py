"""An index process with a clock of the day that is wrong.

`python -m tests.histories.index_process SEED index run --config FILE`
"""

from __future__ import annotations

import sys
from random import Random

from tests.histories.clock import install_clock


def main() -> int:
    """Run the command."""
    _, seed, *command = sys.argv
    install_clock(Random(int(seed)))
    # Behind the clock, as its text says.
    from warpseal.cli.main import main as run_command

    return run_command(command)


if __name__ == "__main__":
    sys.exit(main())
