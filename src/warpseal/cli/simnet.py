"""`warpseal simnet`: a simulated network of validators and nodes."""

from __future__ import annotations

import argparse

from warpseal.cli.process import run_on_loop
from warpseal_simnet import main as simnet

add_arguments = simnet.add_arguments


def run(args: argparse.Namespace) -> int:
    """Run the network until SIGTERM or SIGINT; return the exit code."""
    return run_on_loop(simnet.run(args))
