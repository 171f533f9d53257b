"""`warpseal simnet`: hands over to the simulated network."""

from __future__ import annotations

import argparse

from warpseal.cli.process import run_on_loop
from warpseal.simnet import main as simnet

add_arguments = simnet.add_arguments


def run(args: argparse.Namespace) -> int:
    """Run the simulated network until stopped; return its exit code."""
    return run_on_loop(simnet.run(args))
