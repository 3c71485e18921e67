"""Errors as clients see them: one JSON shape, that of OpenAI's API, whatever raised them.

`{"error": {"message": …, "type": …, "param": …, "code": …}}`. A message never repeats what the client sent, so that
texts of users reach no log through it.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import AfterValidator, BaseModel
from starlette.exceptions import HTTPException

INVALID_REQUEST, SERVER_ERROR = "invalid_request_error", "server_error"
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class ErrorBody(BaseModel):
    """What is in an answer's `error`."""

    message: str
    type: str
    param: str | None = None
    """The field of the request that is wrong."""
    code: str | None = None
    """A short name that programs can compare."""


class ErrorAnswer(BaseModel):
    """The body of every answer with a status of 400 or more."""

    error: ErrorBody


class ApiError(Exception):
    """An answer with a status of 400 or more."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    def answer(self) -> JSONResponse:
        """The error as a response."""
        kind = _TYPES.get(self.status, INVALID_REQUEST if self.status < 500 else SERVER_ERROR)
        body = ErrorAnswer(error=ErrorBody(message=self.message, type=kind, param=self.param, code=self.code))
        return JSONResponse(body.model_dump(), self.status, self.headers)


def retry_later(status: int, message: str, seconds: float, *, code: str) -> ApiError:
    """An error that goes away by itself; clients wait for about so many seconds."""
    return ApiError(status, message, code=code, headers={"Retry-After": str(max(1, round(seconds)))})


def add_error_answers(app: FastAPI) -> None:
    """Answer every exception that handlers raise on purpose in the one shape."""

    async def api_error(_: Request, error: ApiError) -> JSONResponse:
        return error.answer()

    async def http_error(_: Request, error: HTTPException) -> JSONResponse:
        headers = dict(error.headers or {})
        return ApiError(error.status_code, str(error.detail), headers=headers).answer()

    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        return validation_error(error.errors()).answer()

    handlers: dict[Any, Any] = {ApiError: api_error, HTTPException: http_error, RequestValidationError: invalid}
    for exception, handler in handlers.items():
        app.add_exception_handler(exception, handler)


def validation_error(problems: Sequence[Mapping[str, Any]]) -> ApiError:
    """400 for a body that does not fit its model: the first problem, and how many more there are."""
    first = problems[0]
    place = ".".join(str(part)[:64] for part in first["loc"][1:])
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    unknown = first["type"] == "extra_forbidden"
    said = "this parameter is not supported; remove it" if unknown else str(first["msg"])
    code = "unsupported_parameter" if unknown else "invalid_json" if first["type"] == "json_invalid" else None
    message = printable(f"{place}: {said}{more}" if place else f"{said}{more}")
    return ApiError(400, message, param=printable(place) or None, code=code)


def _encodable(text: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("expected valid Unicode, found half of a surrogate pair") from None
    return text


Text = Annotated[str, AfterValidator(_encodable)]
"""A text of a request body: JSON can hold halves of surrogate pairs, which cannot be encoded again."""


def printable(text: str) -> str:
    """A text that can be sent: no lone surrogates or control characters, which a client may put into field names."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text)
