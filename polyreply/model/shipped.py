"""The model that comes with the package: ten decoders on a small T5, trained on screened chitchat."""

from pathlib import Path

from polyreply.errors import ModelFolderError

SHIPPED = "shipped"
"""Its name, wherever a model or a backbone is named."""
FOLDER = Path(__file__).parent.parent / "shipped"


def shipped_folder() -> Path:
    """Its model folder, inside the package."""
    if not (FOLDER / "config.json").is_file():
        raise ModelFolderError(
            f"expected the shipped model in {FOLDER}, found none; install polyreply again, or name a model of your own"
        )
    return FOLDER
