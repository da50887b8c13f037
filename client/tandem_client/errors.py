"""What can go wrong, as types: each carries the server's own sentence and its status code."""

from typing import ClassVar

_UNREACHABLE = "no connection to the server ({}): start it, or give its own address"


class TandemError(Exception):
    """Base of every error a client raises; `str(error)` is the server's sentence.

    `code` is the gRPC spelling of the status (`INVALID_ARGUMENT`, `UNAVAILABLE`, …). `retriable`
    says whether the same request may succeed later without being changed.
    """

    code: ClassVar[str] = "UNKNOWN"
    retriable: ClassVar[bool] = False


class InvalidArgument(TandemError):
    """The request is wrong: the sentence names what."""

    code = "INVALID_ARGUMENT"


class NotFound(TandemError):
    """The server has no such model."""

    code = "NOT_FOUND"


class Unavailable(TandemError):
    """The server cannot be reached, the model is not ready, or its queue is full."""

    code = "UNAVAILABLE"
    retriable = True


class Cancelled(TandemError):
    """The request was cancelled, here or on the server."""

    code = "CANCELLED"


class DeadlineExceeded(TandemError):
    """The request ran past its timeout."""

    code = "DEADLINE_EXCEEDED"
    retriable = True


class Denied(TandemError):
    """The server, or what stands before it, does not let this client in."""

    code = "PERMISSION_DENIED"


class Unsupported(TandemError):
    """The server does not know this kind of request."""

    code = "UNIMPLEMENTED"


class ServerError(TandemError):
    """The server failed, and not because of the request."""

    code = "INTERNAL"


_KINDS: tuple[type[TandemError], ...] = (
    InvalidArgument,
    NotFound,
    Unavailable,
    Cancelled,
    DeadlineExceeded,
    Denied,
    Unsupported,
    ServerError,
)
_BY_CODE: dict[str, type[TandemError]] = {
    "UNAUTHENTICATED": Denied,
    "RESOURCE_EXHAUSTED": Unavailable,
    **{error.code: error for error in _KINDS},
}

_BY_STATUS: dict[int, type[TandemError]] = {
    401: Denied,
    403: Denied,
    404: NotFound,
    408: DeadlineExceeded,
    413: InvalidArgument,
    429: Unavailable,
    499: Cancelled,
    501: Unsupported,
    502: Unavailable,
    503: Unavailable,
    504: DeadlineExceeded,
}

# What tells the kind of an error that came without a code.
_BY_WORDS: tuple[tuple[str, type[TandemError]], ...] = (
    ("unknown model", NotFound),
    ("was cancelled", Cancelled),
    ("try again", Unavailable),
    ("send the request again", Unavailable),
    ("being unloaded", Unavailable),
    ("timeout of", DeadlineExceeded),
    ("stub process", ServerError),
    ("request could not be read", ServerError),
    ("could not be sent", ServerError),
)


def from_grpc(code: str, sentence: str) -> TandemError:
    """The error for a gRPC status; `code` is its name."""
    if code == "UNAVAILABLE" and "connect" in sentence:
        # gRPC names every address and layer it went through; the reason stands last.
        sentence = _UNREACHABLE.format(sentence.rstrip(": ").rsplit(": ", 1)[-1])
    if code == "RESOURCE_EXHAUSTED" and "larger than max" in sentence:
        return InvalidArgument(sentence)  # it would be too large again
    return _BY_CODE.get(code, ServerError)(sentence or f"the server answered {code}")


def from_http(status: int, sentence: str) -> TandemError:
    """The error for an HTTP status of 400 or more.

    Triton's generate endpoints answer 400 for every error of a model, whatever its code.
    """
    if status == 400:
        return from_sentence(sentence, answering=False)
    return _BY_STATUS.get(status, ServerError)(sentence or f"the server answered HTTP {status}")


def from_sentence(sentence: str, *, answering: bool) -> TandemError:
    """The error for a sentence without a code, as on Triton's streams.

    What is wrong with a request shows before its first token: `answering` says that one came.
    """
    text = sentence.lower()
    for words, error in _BY_WORDS:
        if words in text:
            return error(sentence)
    return (ServerError if answering else InvalidArgument)(sentence)


def unreachable(cause: Exception) -> TandemError:
    """The error for a connection that could not be made or broke."""
    return Unavailable(_UNREACHABLE.format(str(cause) or type(cause).__name__))
