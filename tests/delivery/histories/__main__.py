"""`python -m tests.delivery.histories`: random histories of networks, with a message in each that a
daemon signs.
"""

from __future__ import annotations

from tests.delivery.histories import clock

if __name__ == "__main__":
    clock.install()

    from tests.delivery.histories.command import main

    raise SystemExit(main())
