"""Codes and statuses become types that say whether to try again."""

import pytest

from tandem_client import errors


@pytest.mark.parametrize(
    ("code", "kind", "retriable"),
    [
        ("INVALID_ARGUMENT", errors.InvalidArgument, False),
        ("NOT_FOUND", errors.NotFound, False),
        ("UNAVAILABLE", errors.Unavailable, True),
        ("CANCELLED", errors.Cancelled, False),
        ("DEADLINE_EXCEEDED", errors.DeadlineExceeded, True),
        ("UNIMPLEMENTED", errors.Unsupported, False),
        ("INTERNAL", errors.ServerError, False),
        ("UNKNOWN", errors.ServerError, False),
        ("UNAUTHENTICATED", errors.Denied, False),
        ("PERMISSION_DENIED", errors.Denied, False),
        ("RESOURCE_EXHAUSTED", errors.Unavailable, True),
    ],
)
def test_grpc_codes(code, kind, retriable):
    error = errors.from_grpc(code, "why")
    assert type(error) is kind
    assert (str(error), error.retriable) == ("why", retriable)


def test_a_message_that_is_too_large_is_the_requests_fault():
    error = errors.from_grpc("RESOURCE_EXHAUSTED", "Sent message larger than max (9 vs. 4)")
    assert type(error) is errors.InvalidArgument


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, errors.Denied),
        (403, errors.Denied),
        (413, errors.InvalidArgument),
        (400, errors.InvalidArgument),
        (404, errors.NotFound),
        (429, errors.Unavailable),
        (499, errors.Cancelled),
        (500, errors.ServerError),
        (503, errors.Unavailable),
    ],
)
def test_http_statuses(status, kind):
    assert type(errors.from_http(status, "why")) is kind


@pytest.mark.parametrize(
    ("sentence", "kind"),
    [
        ("Request for unknown model: 'x' is not found", errors.NotFound),
        ("1024 requests are waiting: try again later.", errors.Unavailable),
        ("The engine's process ended: send the request again.", errors.Unavailable),
        ("The model is being unloaded.", errors.Unavailable),
        ("The request was cancelled.", errors.Cancelled),
        ("The request's timeout of 3 s is over: allow more time.", errors.DeadlineExceeded),
        ("Stub process 'tandem_0_0' is not healthy.", errors.ServerError),
        ("The request could not be read: no such thing.", errors.ServerError),
        ("An answer could not be sent: see the log.", errors.ServerError),
    ],
)
@pytest.mark.parametrize("answering", [True, False])
def test_words_tell_the_kind_of_a_sentence_without_a_code(sentence, kind, answering):
    assert type(errors.from_sentence(sentence, answering=answering)) is kind
    assert type(errors.from_http(400, sentence)) is kind


def test_other_sentences_blame_the_request_only_before_its_first_token():
    sentence = "unexpected inference input 'x'"
    assert type(errors.from_sentence(sentence, answering=False)) is errors.InvalidArgument
    assert type(errors.from_sentence(sentence, answering=True)) is errors.ServerError


def test_an_empty_sentence_names_the_code():
    assert str(errors.from_grpc("INTERNAL", "")) == "the server answered INTERNAL"
    assert str(errors.from_http(500, "")) == "the server answered HTTP 500"


@pytest.mark.parametrize(
    ("cause", "reason"),
    [(OSError("broken"), "broken"), (ConnectionResetError(), "ConnectionReset")],
)
def test_a_broken_connection_has_a_reason(cause, reason):
    assert f"no connection to the server ({reason}" in str(errors.unreachable(cause))


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:1.2.3.4:5: refused",
            "refused",
        ),
        ("failed to connect to all addresses; last error: UNKNOWN: ", "UNKNOWN"),
    ],
)
def test_of_what_grpc_says_the_last_is_the_reason(said, reason):
    assert f"no connection to the server ({reason})" in str(errors.from_grpc("UNAVAILABLE", said))
