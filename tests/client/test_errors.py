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
    ],
)
def test_grpc_codes(code, kind, retriable):
    error = errors.from_grpc(code, "why")
    assert type(error) is kind
    assert (str(error), error.retriable) == ("why", retriable)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
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


def test_a_sentence_without_a_code():
    assert type(errors.from_sentence("Request for unknown model: 'x'")) is errors.NotFound
    assert type(errors.from_sentence("unexpected inference input")) is errors.InvalidArgument


def test_an_empty_sentence_names_the_code():
    assert str(errors.from_grpc("INTERNAL", "")) == "the server answered INTERNAL"
    assert str(errors.from_http(500, "")) == "the server answered HTTP 500"
