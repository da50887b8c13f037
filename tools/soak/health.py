"""How long a server takes to say that it is ready, asked by a process of its own.

`python -m tools.soak.health HOST:PORT` asks ten times a second until its input ends, then prints as
JSON the milliseconds that each answer took, how many of them the asker itself was ready to run but
had no core, and what came instead of an answer. (A thread beside the clients of an overload would
wait for their interpreter rather than for the server; and an asker on another machine would not
wait for a core of the server's.)
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tandem.triton_http import HEALTH, OK, ask

PAUSE_S = 0.1
HEALTHY_MS = 100.0
LONGEST_S = 60.0
SCHEDULED = Path("/proc/thread-self/schedstat")  # ns on a core, ns ready but without one, turns


class Asked(NamedTuple):
    """An answer to a question about health."""

    ms: float
    """That it took, all in all."""
    own_ms: float
    """Of these the asker waited for a core, which is not the server's doing."""


def too_slow(health: Sequence[Asked]) -> list[str]:
    """A sentence if the server has once not told its health soon."""
    late = sum(one.ms - one.own_ms > HEALTHY_MS for one in health)
    if not late:
        return []
    return [f"Health took longer than {HEALTHY_MS:.0f} ms {late} times of {len(health)}."]


@contextmanager
def health_asked(address: str, taken: list[Asked], lost: list[str]) -> Iterator[None]:
    """Meanwhile the process runs; afterwards it has told what it saw."""
    asker = subprocess.Popen(
        [sys.executable, "-m", __name__, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # one group for the scheduler: not the clients' share of the cores
    )
    try:
        yield
    finally:
        said, _ = asker.communicate(timeout=2 * LONGEST_S)
    found = json.loads(said)
    taken += [Asked(*one) for one in found["milliseconds"]]
    lost += found["lost"]


def _without_core_ms() -> float:
    """That this thread was ready to run and did not, so far."""
    return int(SCHEDULED.read_text().split()[1]) / 1e6


def main(address: str) -> None:
    """Asks and prints."""
    over = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait, daemon=True).start()
    taken, lost = [], []
    while not over.wait(PAUSE_S):
        waited, begun = _without_core_ms(), time.perf_counter()
        status = ask(address, HEALTH, timeout=LONGEST_S).status
        if status == OK:
            took = 1000 * (time.perf_counter() - begun)
            taken.append(Asked(took, _without_core_ms() - waited))
        else:
            lost.append(f"Asked for its health, the server gave: {status or 'nothing'}.")
    print(json.dumps({"milliseconds": taken, "lost": lost}))


if __name__ == "__main__":
    main(sys.argv[1])
