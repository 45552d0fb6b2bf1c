import pytest

from gateway import errors
from gateway.errors import BadImage, ConfigError, EngineRefused, GatewayError, RateLimited, UnknownEndpoint

# The contract: which status stands for what.
STATUSES = {
    "BadRequest": 400,
    "BadImage": 400,
    "EngineRefused": 400,
    "Unauthorized": 401,
    "Forbidden": 403,
    "UnknownModel": 404,
    "UnknownEndpoint": 404,
    "RequestTimeout": 408,
    "BodyTooLarge": 413,
    "UnsupportedMediaType": 415,
    "RateLimited": 429,
    "HeadersTooLarge": 431,
    "InternalError": 500,
    "EngineFailed": 502,
    "Unavailable": 503,
    "EngineTooSlow": 504,
}


def refusals() -> list[type[GatewayError]]:
    found = (value for value in vars(errors).values() if isinstance(value, type))
    return [value for value in found if issubclass(value, GatewayError) and value is not GatewayError]


def test_every_refusal_has_the_status_of_the_contract() -> None:
    assert {kind.__name__: kind.status for kind in refusals()} == STATUSES


@pytest.mark.parametrize("kind", refusals())
def test_client_errors_and_server_errors_have_different_types(kind: type[GatewayError]) -> None:
    callers = ("invalid_request_error", "rate_limit_exceeded")
    assert (kind.kind in callers) == (kind.status < 500)


def test_a_bad_image_says_so_in_its_code() -> None:
    assert BadImage("cut short").code == "invalid_image"


def test_a_bad_image_names_its_field_in_another_error() -> None:
    error = BadImage("cut short", code="image_too_small")
    named = error.named("image", "the image: ")
    assert (named.message, named.param, named.code) == ("the image: cut short", "image", "image_too_small")
    assert (error.message, error.param) == ("cut short", None)


def test_an_error_that_is_kept_has_all_but_its_traceback() -> None:
    for error in (
        RateLimited("later", param="p", code="c", retry_after=7),
        EngineRefused("no", status=418),
        UnknownEndpoint("nowhere", status=405),
        BadImage("cut short"),
    ):
        with pytest.raises(type(error)) as raised:
            raise error
        kept = raised.value.untraced()
        assert (type(kept), str(kept), vars(kept)) == (type(error), str(error), vars(error))
        assert kept.__traceback__ is None
        assert error.__traceback__ is not None


def test_a_config_error_reads_as_its_problems() -> None:
    assert str(ConfigError(["f:1: a", "f:2: b"])) == "f:1: a\nf:2: b"
