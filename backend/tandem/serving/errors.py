"""The one error of this package: a sentence that says what is wrong and what to do."""


class ServingError(Exception):
    """Triton cannot be started, did not become ready, or ended."""
