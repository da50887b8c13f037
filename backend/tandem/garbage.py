"""When Python looks for garbage.

While modules are imported and models built nearly nothing becomes garbage, and looking for it takes
a fifth of the time that importing vLLM does.
"""

from __future__ import annotations

import gc
from typing import Final

_USUALLY: Final = gc.get_threshold()
_LOADING: Final = 500_000
"""More objects than there were: none is looked for meanwhile, as a rule."""


def look_seldom() -> None:
    """Until `look_as_usual`."""
    gc.set_threshold(_LOADING, *_USUALLY[1:])


def look_as_usual() -> None:
    """What has been loaded meanwhile is looked at as ever."""
    gc.set_threshold(*_USUALLY)
