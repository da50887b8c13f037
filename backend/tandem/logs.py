"""What a process of Tandem writes to Triton's log."""

import logging


def log_as(level: str) -> None:
    """Tandem's own lines from this level on; of libraries, which may show what is theirs to see
    and not the log's, warnings and worse."""
    logging.basicConfig(format="tandem: %(message)s")
    logging.getLogger("tandem").setLevel(level.upper())
