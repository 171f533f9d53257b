"""`python -m tests.world`: worlds by seed, and the shortest history of one that fails."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # Sets of texts and bytes are in the same order in each run.
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.world", *sys.argv[1:]])

    from tests.world.install import install

    install()

    from tests.world.command import main

    code = main()
    sys.stdout.flush()
    # Without the destructors of what the last worlds left.
    os._exit(code)
