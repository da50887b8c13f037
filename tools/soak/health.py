"""How long a server takes to say that it is ready, asked by a process of its own.

`python -m tools.soak.health HOST:PORT` asks ten times a second until its input ends, then prints as
JSON the milliseconds that each answer took, and what came instead of one. (A thread beside the
clients of an overload would wait for their interpreter rather than for the server.)
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tandem.triton_http import HEALTH, OK, ask

PAUSE_S = 0.1
LONGEST_S = 60.0


@contextmanager
def health_asked(address: str, taken: list[float], lost: list[str]) -> Iterator[None]:
    """Meanwhile the process runs; afterwards it has told what it saw."""
    asker = subprocess.Popen(
        [sys.executable, "-m", __name__, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield
    finally:
        said, _ = asker.communicate(timeout=2 * LONGEST_S)
    found = json.loads(said)
    taken += found["milliseconds"]
    lost += found["lost"]


def main(address: str) -> None:
    """Asks and prints."""
    over = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait, daemon=True).start()
    taken, lost = [], []
    while not over.wait(PAUSE_S):
        begun = time.perf_counter()
        status = ask(address, HEALTH, timeout=LONGEST_S).status
        if status == OK:
            taken.append(1000 * (time.perf_counter() - begun))
        else:
            lost.append(f"Asked for its health, the server gave: {status or 'nothing'}.")
    print(json.dumps({"milliseconds": taken, "lost": lost}))


if __name__ == "__main__":
    main(sys.argv[1])
