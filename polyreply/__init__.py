"""polyreply: one message in, K different replies out."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyreply.data.dialogue import Dialogue
    from polyreply.data.prepare import PrepareConfig, prepare
    from polyreply.data.read import read_dialogues
    from polyreply.metrics.comparison import Comparison, compare
    from polyreply.metrics.evaluation import evaluate
    from polyreply.metrics.scores import Scores
    from polyreply.models.config import PolyReplyConfig
    from polyreply.models.polyreply_model import PolyReplyModel
    from polyreply.reply import PolyReply, Reply

__version__ = "0.1.0"
__all__ = [
    "Comparison",
    "Dialogue",
    "PolyReply",
    "PolyReplyConfig",
    "PolyReplyModel",
    "PrepareConfig",
    "Reply",
    "Scores",
    "__version__",
    "compare",
    "evaluate",
    "prepare",
    "read_dialogues",
]

_HOMES = {
    "Comparison": "polyreply.metrics.comparison",
    "Dialogue": "polyreply.data.dialogue",
    "PolyReply": "polyreply.reply",
    "PolyReplyConfig": "polyreply.models.config",
    "PolyReplyModel": "polyreply.models.polyreply_model",
    "PrepareConfig": "polyreply.data.prepare",
    "Reply": "polyreply.reply",
    "Scores": "polyreply.metrics.scores",
    "compare": "polyreply.metrics.comparison",
    "evaluate": "polyreply.metrics.evaluation",
    "prepare": "polyreply.data.prepare",
    "read_dialogues": "polyreply.data.read",
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used, so that `import polyreply` costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'polyreply' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
