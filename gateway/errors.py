"""Every refusal the gateway makes: its HTTP status, OpenAI error type and what would be right."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Self


class GatewayError(Exception):
    """A request that gets no answer, with all that its error body and headers need.

    Not changed once it is raised.

    Attributes:
        status: HTTP status code.
        kind: OpenAI's `error.type`.
        message: what was wrong and what would be right; never holds document content or keys.
        param: the request's field at fault, if one is.
        code: OpenAI's `error.code`, a stable word for programs.
        retry_after: seconds until a retry makes sense, for 429 and 503.
    """

    status = 500
    kind = "server_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after

    def untraced(self) -> Self:
        """Return a copy to keep: without the traceback, whose frames keep alive whatever they worked on."""
        return copy.copy(self)


class InternalError(GatewayError):
    """A fault of the gateway's own (500); the log has its trace, the client does not."""

    def __init__(self) -> None:
        super().__init__("the gateway failed unexpectedly; its log says how", code="internal_error")


class BadRequest(GatewayError):
    """The request itself is wrong (400)."""

    status = 400
    kind = "invalid_request_error"


class BadImage(BadRequest):
    """An image that cannot be read, or must not be (400, code `invalid_image` unless told otherwise)."""

    def __init__(self, message: str, *, param: str | None = None, code: str = "invalid_image") -> None:
        super().__init__(message, param=param, code=code)

    def named(self, param: str, prefix: str = "") -> BadImage:
        """Return the same refusal, of the field `param`, with words before its message."""
        return BadImage(prefix + self.message, param=param, code=self.code or "invalid_image")


class EngineRefused(BadRequest):
    """An engine's own refusal of a request: a 4xx, whose status it keeps."""

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message, code="engine_refused")
        self.status = status


class Unauthorized(GatewayError):
    """No API key, or not one of ours (401)."""

    status = 401
    kind = "invalid_request_error"


class Forbidden(GatewayError):
    """An API key that is not for this (403)."""

    status = 403
    kind = "invalid_request_error"


class UnknownEndpoint(GatewayError):
    """A path that does not exist (404), or a method that it does not have (405)."""

    status = 404
    kind = "invalid_request_error"

    def __init__(self, message: str, *, status: int = 404) -> None:
        super().__init__(message, code="unknown_endpoint")
        self.status = status


class RequestTimeout(GatewayError):
    """The client was too slow to send its request (408)."""

    status = 408
    kind = "invalid_request_error"


class HeadersTooLarge(GatewayError):
    """A request line and headers over the configured limit (431)."""

    status = 431
    kind = "invalid_request_error"


class RateLimited(GatewayError):
    """A key's own limit is reached (429); always with Retry-After."""

    status = 429
    kind = "rate_limit_exceeded"


class UnknownModel(GatewayError):
    """A model this gateway does not serve (404)."""

    status = 404
    kind = "invalid_request_error"


class BodyTooLarge(GatewayError):
    """A body over the configured limit (413)."""

    status = 413
    kind = "invalid_request_error"


class UnsupportedMediaType(GatewayError):
    """A body in an encoding that is not read (415)."""

    status = 415
    kind = "invalid_request_error"


class EngineFailed(GatewayError):
    """The engine broke off, answered nonsense or refused our key (502)."""

    status = 502
    kind = "engine_error"


class Unavailable(GatewayError):
    """No engine may take the request in time (503); always with Retry-After."""

    status = 503
    kind = "service_unavailable"


class EngineTooSlow(GatewayError):
    """A time-out while the engine had the request (504)."""

    status = 504
    kind = "engine_timeout"


class ClientLeft(Exception):
    """The client closed its connection; nobody is left to answer. Logged as 499."""


class ConfigError(Exception):
    """A configuration that cannot be used.

    Attributes:
        problems: one `file:line: key: ...` line each.
        sources: the files that it was to be read from, as Config.sources.
    """

    def __init__(self, problems: list[str], sources: Mapping[Path, bytes] | None = None) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
        self.sources = sources or {}
