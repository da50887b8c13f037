"""The error of this package."""

from tandem.errors import TandemError


class ServingError(TandemError):
    """Triton cannot be started, did not become ready, or ended."""
