"""What annotators read: the questions and every text of their page, in one YAML file per language."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from polyreply.config import load_recipe
from polyreply.errors import PolyReplyError

SHIPPED = Path(__file__).parent / "wording"


@dataclass(frozen=True)
class Question:
    """One thing that annotators judge."""

    ask: str = ""
    """The question, above the responses."""
    hint: str = ""
    """What to pay attention to, below the question."""
    shows: Literal["one", "all"] = "one"
    """`one`: one response of each system, as for quality; `all`: all K responses, as for diversity."""


@dataclass(frozen=True)
class Wording:
    """Every text that annotators see, apart from contexts and responses."""

    language: str = ""
    """Language tag of the page, such as `en` or `zh-CN`."""
    title: str = ""
    """Name of the page; it must not name the systems."""
    welcome: str = ""
    """Instructions before the first comparison; an empty line starts a paragraph."""
    start: str = ""
    """Button that leads to the first comparison."""
    questions: dict[str, Question] = field(default_factory=dict)
    """By name, in the order in which they are asked; all comparisons of a question come before the next question."""
    new_question: str = ""
    """Heading above the first comparison of another question."""
    context: str = ""
    """Heading of the context."""
    response: str = ""
    """Heading of a side with one response, before its number."""
    responses: str = ""
    """Heading of a side with all K responses, before its number."""
    first: str = ""
    """Button for side 1."""
    second: str = ""
    """Button for side 2."""
    tie: str = ""
    """Button for neither."""
    empty: str = ""
    """In place of a response without text."""
    progress: str = ""
    """How many comparisons are answered: {done} of {total}."""
    undo: str = ""
    """Button that takes back the last answer."""
    keys: str = ""
    """The keys, shown where there is a keyboard."""
    done_title: str = ""
    """Heading when everything is answered."""
    done: str = ""
    """Text when everything is answered, also to somebody who opens the link again."""
    wrong_link: str = ""
    """For a link that belongs to no annotator."""
    closed: str = ""
    """For a study that takes no answers."""
    elsewhere: str = ""
    """When the answer was given in another window already."""
    retrying: str = ""
    """While an answer is not saved because the server cannot be reached."""

    def problems(self) -> Iterator[str]:
        """Texts that are missing, and questions without a text."""
        for one in fields(self):
            if not getattr(self, one.name):
                yield f"{one.name} is missing"
        for name, question in self.questions.items():
            if not question.ask:
                yield f"questions.{name}.ask is missing"
        if "{done}" not in self.progress or "{total}" not in self.progress:
            yield f"progress is {self.progress!r}; it needs {{done}} and {{total}}"


def shipped_wordings() -> list[str]:
    """The languages that come with the package."""
    return sorted(file.stem for file in SHIPPED.glob("*.yaml"))


def load_wording(name: str) -> Wording:
    """A shipped wording by its language, or a YAML file."""
    shipped = SHIPPED / f"{name}.yaml"
    if shipped.is_file() and not Path(name).is_file():
        return load_recipe(Wording, shipped)
    if not Path(name).is_file():
        raise PolyReplyError(
            f"wording: expected {', '.join(shipped_wordings())} or a YAML file, found {name!r}; check the path"
        )
    return load_recipe(Wording, Path(name))
