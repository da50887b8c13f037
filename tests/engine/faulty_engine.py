"""The engine's process with a fault that a prompt brings about: HANG or FAIL as its only token.

Run as an interpreter would be: `faulty_engine.py -m tandem.engine_main FD`.
"""

import sys
import threading
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "backend")]

from tandem import service_worker  # noqa: E402
from tandem.engine import NativeEngine  # noqa: E402

HANG, FAIL = 7, 8

step = NativeEngine.step


def faulty_step(engine: NativeEngine) -> list:
    prompts = [request.tokens[:1] for request in engine.scheduler.waiting]
    if [HANG] in prompts:
        threading.Event().wait()
    if [FAIL] in prompts:
        raise MemoryError("no 3 GiB are free.\nAt some place.")
    time.sleep(0.02)  # long enough for a fault to come in the midst of an answer
    return step(engine)


if __name__ == "__main__":
    NativeEngine.step = faulty_step
    sys.argv = sys.argv[2:]
    service_worker.main()
