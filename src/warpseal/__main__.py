"""`python -m warpseal` is the `warpseal` command."""

import sys

from warpseal.cli.main import main

sys.exit(main())
