"""What a client is told when a request cannot be served: one status, one kind, one sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trivium.errors import TriviumError


@dataclass(eq=False)
class ApiError(TriviumError):
    """`kind` is the word that OpenAI's and Anthropic's APIs have for it; `after` are the seconds of Retry-After, 0 for none."""

    status: int
    kind: str
    message: str
    after: int = 0

    def __str__(self) -> str:
        return self.message


def invalid(message: str) -> ApiError:
    """The request itself is wrong, and would be wrong again."""
    return ApiError(400, "invalid_request_error", message)


def missing(message: str) -> ApiError:
    """There is no such thing, or it is somebody else's: the two are told in one way."""
    return ApiError(404, "not_found_error", message)


def busy(message: str, after: int) -> ApiError:
    """A limit is reached: the same request may be sent again `after` seconds."""
    return ApiError(429, "rate_limit_error", message, max(1, after))


def away(message: str) -> ApiError:
    """Something behind the server is gone for a moment."""
    return ApiError(503, "overloaded_error", message, 1)


def late(message: str) -> ApiError:
    """A reply took longer than the server waits."""
    return ApiError(504, "timeout_error", message)


def body_of(error: ApiError, path: str) -> dict[str, Any]:
    """An error as the API at `path` writes it."""
    if path.startswith("/v1/messages"):
        return {"type": "error", "error": {"type": error.kind, "message": error.message}}
    return {"error": {"message": error.message, "type": error.kind, "param": None, "code": error.kind}}


def headers_of(error: ApiError) -> dict[str, str]:
    """Retry-After, where there is a sense in trying again."""
    return {"Retry-After": str(error.after)} if error.after else {}
