"""What vLLM would leave behind at its end: a plug-in of vLLM.

- An engine that ends when the process that started it is gone.
- Ranks that meet at a file in a folder that goes with the engine: vLLM leaves it in the temporary
  folder, unless they end in good order. What ranks on CPUs have in shared memory, which vLLM leaves
  however they end, is named after this file (`_CPUSHMDistributed` of vLLM 0.32), and noted there
  (`tandem.leftovers`).
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
from collections.abc import Callable
from functools import wraps
from pathlib import Path

from tandem.garbage import look_as_usual
from tandem.leftovers import SCRATCH, note_shared
from tandem.vllm.seams import Seam, troubles

logger = logging.getLogger(__name__)

_MEET = "get_file_store_init_method"
SEAMS = (
    Seam("vllm.v1.executor.multiproc_executor", _MEET, ()),
    Seam("vllm.v1.executor.uniproc_executor", _MEET, ()),
)


def register() -> None:
    """The entry point, called behind the imports of every process of vLLM that is not forked from
    such a one."""
    look_as_usual()
    _end_with_parent()
    folder = os.environ.get(SCRATCH)
    if folder is None:
        return  # a vLLM that we have not started
    wrong = troubles(SEAMS)
    if wrong:
        logger.error("vLLM leaves files behind at its end: %s.", "; ".join(wrong))
        return
    for seam in SEAMS:
        seam.replace(_meeting_in(folder))


def _meeting_in(folder: str) -> Callable[[Callable[[], str]], Callable[[], str]]:
    def make(original: Callable[[], str]) -> Callable[[], str]:
        @wraps(original)
        def meeting() -> str:
            """As a URL."""
            name = original().rpartition("/")[2]
            note_shared(Path(folder), f"{name}-")
            return f"file://{folder}/{name}"

        return meeting

    return make


def _end_with_parent() -> None:
    """vLLM's engine process would outlive a killed parent, and hold its devices."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, name="tandem-parent", daemon=True).start()
