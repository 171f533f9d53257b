"""Other processes: started, read through the kernel's books, and stopped. Linux only."""

from __future__ import annotations

import os
import resource
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

# Signing for hundreds of validators beforehand takes minutes on a busy machine.
START_TIMEOUT_S = 900.0
STOP_TIMEOUT_S = 60.0
_CPU_CLOCK_OF_PROCESS = 2
_PROJECT = Path(__file__).parents[1]


class ProcessFailed(Exception):
    """A process ended, or said nothing, before it was ready."""


@dataclass(frozen=True, slots=True)
class Process:
    """A running process and the line that it printed when it was ready."""

    pid: int
    ready_line: str
    log: Path

    def cpu_s(self) -> float:
        """Return the CPU time of all its threads, user and system, ended ones included, in seconds.

        It is utime + stime of /proc/PID/stat, without their rounding to 10 ms: the kernel's CPU
        clock of a process (clock_getcpuclockid(3)).
        """
        return time.clock_gettime(~self.pid << 3 | _CPU_CLOCK_OF_PROCESS)

    def rss_bytes(self) -> int:
        """Return the resident memory."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def family(self) -> list[Process]:
        """Return this process and all that it started, directly or not."""
        text = "".join(
            path.read_text() for path in Path(f"/proc/{self.pid}/task").glob("*/children")
        )
        children = (Process(int(pid), "", self.log) for pid in text.split())
        return [self, *(member for child in children for member in child.family())]

    def pss_bytes(self) -> int:
        """Return the resident memory, of shared pages the share of this process."""
        lines = Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))

    def peak_bytes(self) -> int:
        """Return the most resident memory that it has had."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


@contextmanager
def running(
    arguments: Sequence[str],
    log: Path,
    *,
    module: str = "warpseal",
    core: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Process]:
    """Run `python -m MODULE ARGUMENTS` until the block ends.

    The process is ready when it prints its first line.
    log: the file of its standard error.
    core: the one CPU core that it may use.
    environment: variables beside those of this process.
    Raises ProcessFailed.
    """
    command = [sys.executable, "-m", module, *arguments]
    with log.open("a") as errors:
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=_PROJECT,
            env={**os.environ, **(environment or {})},
        )
    try:
        if core is not None:
            os.sched_setaffinity(
                child.pid, {core}
            )  # Threads that it starts from now on inherit this.
        yield Process(child.pid, _first_line(child, log), log)
    finally:
        _stop(child)


def _first_line(child: subprocess.Popen[str], log: Path) -> str:
    assert child.stdout is not None
    readable, _, _ = select.select([child.stdout], [], [], START_TIMEOUT_S)
    line = child.stdout.readline().strip() if readable else ""
    if not line:
        last = "".join(log.read_text().splitlines(keepends=True)[-5:])
        raise ProcessFailed(f"{child.args!r} was not ready (exit code {child.poll()}):\n{last}")
    return line


def _stop(child: subprocess.Popen[str]) -> None:
    child.terminate()
    try:
        child.communicate(timeout=STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()


def allow_many_sockets() -> None:
    """Raise this process's limit of open files to its hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
