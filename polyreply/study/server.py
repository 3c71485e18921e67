"""The web server of a study: one comparison at a time for annotators, progress and live results for the researcher.

A personal link ends in `#TOKEN`. Browsers do not send that part, so that no log or proxy sees it; the page sends it in
the Authorization header. What an annotator receives depends on the texts alone: no names of systems, no place in the
comparison, no marks of repeats or gold checks, and both sides in one answer.
"""

import sqlite3
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ConfigDict, Field

from polyreply.study.answers import UNDO, Answers, Event, OtherItemError, StaleTurnError, answered
from polyreply.study.folder import Annotator, Study, load_study, load_tokens, open_answers
from polyreply.study.wording import Wording
from polyreply.web.app import LOCAL_HOSTS, add_page, create_app
from polyreply.web.errors import ApiError, retry_later
from polyreply.web.keys import Keys, digest
from polyreply.web.logs import note

_STATIC = Path(__file__).parent / "static"
_RESEARCHER = "researcher"
_LONGEST_ID = 64


class Undo(BaseModel):
    """Take back the last answer."""

    model_config = ConfigDict(extra="forbid")

    turn: int = Field(ge=0, le=1 << 31)
    """How many events the page knows of: the same number again is the same request again."""
    item: str = Field(max_length=_LONGEST_ID)


class Answer(Undo):
    """An answer to the item on the screen."""

    choice: Literal["1", "2", "tie"]
    seconds: float | None = Field(default=None, ge=0, le=1e6, allow_inf_nan=False)


class Shown(BaseModel):
    """An item as an annotator sees it."""

    id: str
    question: str
    context: list[str]
    side_1: list[str]
    side_2: list[str]


class Session(BaseModel):
    """Where an annotator is."""

    turn: int
    done: int
    total: int
    item: Shown | None
    """None when everything is answered."""
    last: str | None
    """The item that an undo takes back."""


class StudyServer:
    """The study behind the requests; all that changes is in the answers on disk."""

    def __init__(self, folder: Path) -> None:
        self.study: Study = load_study(folder)
        self.answers: Answers = open_answers(folder, self.study)
        tokens = load_tokens(folder)
        self._annotators = {one.name: one for one in self.study.annotators}
        self._annotator_keys = Keys({name: digest(token) for name, token in tokens.annotators.items()})
        self._researcher_key = Keys({_RESEARCHER: digest(tokens.researcher)})
        self._live: tuple[int, dict[str, Any]] = (-1, {})

    def annotator(self, token: str) -> Annotator:
        """The annotator of a personal link; raises if there is none, or nobody may answer."""
        name = self._annotator_keys.owner(token)
        if name is None or name not in self._annotators:
            raise ApiError(401, self.study.wording.wrong_link, code="wrong_link")
        if self.study.simulated is not None:
            raise ApiError(403, self.study.wording.closed, code="closed")
        note(annotator=name)
        return self._annotators[name]

    def check_researcher(self, token: str) -> None:
        """Raise unless the token is the researcher's."""
        if self._researcher_key.owner(token) is None:
            raise ApiError(401, "this is not the researcher's link; `study serve` prints it", code="wrong_link")

    def session(self, annotator: Annotator, events: Sequence[Event]) -> Session:
        """Where an annotator is after these events."""
        items, done = annotator.items, answered(events)
        shown = None
        if len(done) < len(items):
            item = items[len(done)]
            comparison, (side_1, side_2) = self.study.comparisons[item.comparison], self.study.shown(item)
            shown = Shown(
                id=item.id,
                question=comparison.question,
                context=list(comparison.context),
                side_1=list(side_1),
                side_2=list(side_2),
            )
        last = done[-1].item if done else None
        return Session(turn=len(events), done=len(done), total=len(items), item=shown, last=last)

    def record(self, annotator: Annotator, request: Undo, action: str, seconds: float | None = None) -> Session:
        """Save an event; the answer says where the annotator is now, and is sent when the event is on disk."""
        ids = [item.id for item in annotator.items]
        with _as_answers():
            events = self.answers.record(annotator.name, request.turn, request.item, action, ids, seconds)
        return self.session(annotator, events)

    def progress(self) -> dict[str, Any]:
        """Progress and results, computed again only when there are new answers."""
        from polyreply.study.results import read_judgements, study_results  # SciPy is not needed before

        count = self.answers.count()
        if count != self._live[0]:
            self._live = count, study_results(self.study, read_judgements(self.study, self.answers)).tree()
        return self._live[1]


@contextmanager
def _as_answers() -> Iterator[None]:
    """Turn what storage refuses, or cannot do, into answers."""
    try:
        yield
    except OtherItemError as error:
        raise ApiError(403, str(error), code="other_item") from None
    except StaleTurnError as error:
        raise ApiError(409, str(error), code="stale") from None
    except sqlite3.Error as error:
        note(problem=str(error))
        raise retry_later(503, "the answer could not be saved; trying again may help", 2, code="not_saved") from None


def create_study_app(folder: Path, allowed_hosts: Sequence[str] = LOCAL_HOSTS) -> FastAPI:
    """The app of a study folder."""
    server = StudyServer(folder)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        server.answers.close()

    app = create_app("polyreply study", assets=_STATIC, lifespan=lifespan, allowed_hosts=allowed_hosts)
    app.state.study = server
    add_page(app, "/", _STATIC / "annotate.html")
    add_page(app, "/researcher", _STATIC / "researcher.html")
    bearer = HTTPBearer(auto_error=False)

    def presented(credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]) -> str:
        return credentials.credentials if credentials else ""

    def annotator(token: Annotated[str, Depends(presented)]) -> Annotator:
        return server.annotator(token)

    Own = Annotated[Annotator, Depends(annotator)]

    @app.get("/api/wording")
    def wording() -> Wording:
        """Every text of the annotators' page."""
        return server.study.wording

    @app.get("/api/session")
    def session(own: Own) -> Session:
        """Where the annotator of the link is."""
        return server.session(own, server.answers.events(own.name))

    @app.post("/api/answer")
    def answer(own: Own, request: Answer) -> Session:
        """Save an answer durably, then return the next item."""
        return server.record(own, request, request.choice, request.seconds)

    @app.post("/api/undo")
    def undo(own: Own, request: Undo) -> Session:
        """Take back the last answer, durably, then return its item."""
        return server.record(own, request, UNDO)

    @app.get("/api/progress")
    def progress(token: Annotated[str, Depends(presented)]) -> dict[str, Any]:
        """Progress of each annotator and live results, for the researcher."""
        server.check_researcher(token)
        return server.progress()

    return app


def links(folder: Path, base: str) -> dict[str, str]:
    """The personal links by name; the researcher's is the first."""
    tokens, base = load_tokens(folder), base.rstrip("/")
    personal = {name: f"{base}/#{token}" for name, token in tokens.annotators.items()}
    return {_RESEARCHER: f"{base}/researcher#{tokens.researcher}", **personal}
