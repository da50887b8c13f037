"""vLLM, for the fork server that its processes come from (`tandem.vllm.starts`)."""

import atexit
import gc
import os

from tandem.garbage import look_seldom

look_seldom()

import setproctitle  # noqa: E402
import vllm.v1.engine.async_llm  # noqa: E402
import vllm.v1.executor.multiproc_executor  # noqa: E402, F401

setproctitle.getproctitle()  # it finds the title's place while the environment is as it was
gc.freeze()  # what is loaded stays, and its memory is one for all that are forked
# It has nothing to end in good order, and nanobind would list what is still there.
atexit.register(os._exit, 0)
