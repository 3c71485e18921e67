"""The exceptions that users can meet.

Each message is one line: what was expected, what was found, how to fix it. The command line prints that line and exits
with status 2; any other exception that escapes is a bug.
"""


class PolyReplyError(ValueError):
    """An error that the user can fix."""


class DataError(PolyReplyError):
    """A dialogue file, a row of it or a corpus that cannot be used."""


class RecipeError(PolyReplyError):
    """A recipe with an unknown key, a value of the wrong type or values that contradict each other."""


class BackboneError(PolyReplyError):
    """A model that cannot be loaded or cannot be a backbone."""


class ModelFolderError(PolyReplyError):
    """A folder or name without a K-decoder model, or with a damaged one."""


class DivergedError(PolyReplyError):
    """A loss, gradient or likelihood is not finite."""


class MissingExtraError(PolyReplyError):
    """An optional package is needed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package}, which is not installed; run: pip install 'polyreply[{extra}]'"
        )
