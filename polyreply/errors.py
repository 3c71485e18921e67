"""The exceptions a user can meet.

Each message is one line that says what was expected, what was found and how to fix it. The command line
prints that line and exits with status 2; anything else that escapes is a defect of ours.
"""


class PolyReplyError(ValueError):
    """A mistake the user can fix."""


class DataError(PolyReplyError):
    """A dialogue file, a row of it or a corpus that cannot be used."""


class RecipeError(PolyReplyError):
    """A recipe with an unknown key, a value of the wrong type or values that contradict each other."""


class BackboneError(PolyReplyError):
    """A model that cannot be loaded, or that cannot serve as a backbone."""


class ModelFolderError(PolyReplyError):
    """A folder or name that holds no K-decoder model, or a damaged one."""


class MissingExtraError(PolyReplyError):
    """An optional package is needed for what was asked."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package}, which is not installed; run: pip install 'polyreply[{extra}]'"
        )
