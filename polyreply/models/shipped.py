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
            "no model is shipped with this version; train one, or name a model folder or a model of the Hugging Face "
            "hub"
        )
    return FOLDER
