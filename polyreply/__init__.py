"""polyreply: one message in, K different replies out."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyreply.data.dialogue import Dialogue
    from polyreply.data.prepare import PrepareRecipe, prepare
    from polyreply.data.read import read_dialogues
    from polyreply.em.settings import EMSettings, OptimizerSettings
    from polyreply.metrics.comparison import Comparison, compare
    from polyreply.metrics.evaluation import evaluate
    from polyreply.metrics.scores import Scores
    from polyreply.models.config import PolyReplyConfig
    from polyreply.models.model import PolyReplyModel
    from polyreply.models.settings import LoraSettings
    from polyreply.reply import PolyReply, Reply
    from polyreply.training.callbacks import Callback
    from polyreply.training.loop import train
    from polyreply.training.recipe import ModelSettings, TrainRecipe, ValidationSettings, load_train_recipe

__version__ = "0.1.0"
__all__ = [
    "Callback",
    "Comparison",
    "Dialogue",
    "EMSettings",
    "LoraSettings",
    "ModelSettings",
    "OptimizerSettings",
    "PolyReply",
    "PolyReplyConfig",
    "PolyReplyModel",
    "PrepareRecipe",
    "Reply",
    "Scores",
    "TrainRecipe",
    "ValidationSettings",
    "__version__",
    "compare",
    "evaluate",
    "load_train_recipe",
    "prepare",
    "read_dialogues",
    "train",
]

_HOMES = {
    "Callback": "polyreply.training.callbacks",
    "Comparison": "polyreply.metrics.comparison",
    "Dialogue": "polyreply.data.dialogue",
    "EMSettings": "polyreply.em.settings",
    "LoraSettings": "polyreply.models.settings",
    "ModelSettings": "polyreply.training.recipe",
    "OptimizerSettings": "polyreply.em.settings",
    "PolyReply": "polyreply.reply",
    "PolyReplyConfig": "polyreply.models.config",
    "PolyReplyModel": "polyreply.models.model",
    "PrepareRecipe": "polyreply.data.prepare",
    "Reply": "polyreply.reply",
    "Scores": "polyreply.metrics.scores",
    "TrainRecipe": "polyreply.training.recipe",
    "ValidationSettings": "polyreply.training.recipe",
    "compare": "polyreply.metrics.comparison",
    "evaluate": "polyreply.metrics.evaluation",
    "load_train_recipe": "polyreply.training.recipe",
    "prepare": "polyreply.data.prepare",
    "read_dialogues": "polyreply.data.read",
    "train": "polyreply.training.loop",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import polyreply` is fast."""
    if name not in _HOMES:
        raise AttributeError(f"module 'polyreply' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
