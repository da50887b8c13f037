"""Can the Python that runs this file be the one below Triton's Python backend?

Prints the path of its shared library, or exits with a sentence that says what is missing. It uses
the standard library only: it judges interpreters before any environment exists.
"""

import sys
import sysconfig
from pathlib import Path

OLDEST, NEWEST = (3, 11), (3, 12)


def shared_library() -> Path:
    """The libpython that the backend's stub links against."""
    name = f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"
    folders = [Path(sysconfig.get_config_var("LIBDIR") or "/"), Path(sys.base_prefix) / "lib"]
    for folder in folders:
        if (folder / name).exists():
            return folder / name
    sys.exit(f"{sys.executable} has no {name}: install a Python built with a shared library.")


def main() -> None:
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        sys.exit(f"{sys.executable} is Python {sys.version.split()[0]}: 3.11 or 3.12 is needed.")
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError as missing:
        sys.exit(f"{sys.executable} lacks {missing.name}: install its venv package.")
    print(shared_library())


if __name__ == "__main__":
    main()
