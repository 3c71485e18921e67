"""Errors as clients see them: one JSON shape, that of OpenAI's API, whatever raised them.

`{"error": {"message": …, "type": …, "param": …, "code": …}}`. A message never repeats what the client sent, so that
texts of users reach no log through it.
"""

import re
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


_BRANCH = re.compile(r"[a-z-]+\[.*\]", re.DOTALL)
"""How Pydantic names a branch of a union in the location of a problem: `list[TextPart]`."""


def validation_error(problems: Sequence[Mapping[str, Any]]) -> ApiError:
    """400 for a body that does not fit its model: the first problem, and how many more there are."""
    problems = [one for one in problems if not _is_of_another_type(one)] or problems[:1]
    first, kind = problems[0], problems[0]["type"]
    if kind == "json_invalid":
        message = f"the body is not valid JSON: {first['ctx']['error']}, at character {first['loc'][-1]}"
        return ApiError(400, message, code="invalid_json")
    if len(first["loc"]) == 1 and kind != "value_error":
        return ApiError(400, "expected a JSON object as the body, with the header Content-Type: application/json")
    unknown = kind == "extra_forbidden"
    place = ".".join(str(part)[:64] for part in _fields(first["loc"], unknown))
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    said = "this parameter is not supported; remove it" if unknown else str(first["msg"])
    code = "unsupported_parameter" if unknown else None
    message = printable(f"{place}: {said}{more}" if place else f"{said}{more}")
    return ApiError(400, message, param=printable(place) or None, code=code)


def _is_of_another_type(problem: Mapping[str, Any]) -> bool:
    """Whether a value only is not of the type of one branch of a union; the problems of another branch say more."""
    return problem["type"].endswith("_type") and _BRANCH.fullmatch(str(problem["loc"][-1])) is not None


def _fields(location: Sequence[Any], is_named_by_client: bool) -> list[Any]:
    """The fields and places on the way to a problem, without branches of unions; the client may have named the last."""
    named = location[-1:] if is_named_by_client else ()
    passed = location[1 : len(location) - len(named)]
    return [*(part for part in passed if not _BRANCH.fullmatch(str(part))), *named]


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
