"""Puts a trained model into the package: `python -m polyreply.reproduce.ship RUN`, for those who make a release.

Weights become float16, which halves them; `PolyReply.from_pretrained` turns them back into float32.
"""

import sys
from pathlib import Path

from polyreply.api import PolyReply
from polyreply.config import load_recipe, to_tree
from polyreply.demo import MESSAGES
from polyreply.metrics import load_scores
from polyreply.model.card import CardFacts, Example
from polyreply.model.shipped import FOLDER
from polyreply.training.recipe import TrainRecipe

DATA = (
    "chitchat (the package `chitchat-dataset`, MIT): real conversations of students who were asked to chat with a "
    "stranger. Only messages and replies of 2 to 40 words; utterances with personal data, abuse or words that give "
    "away where the conversations come from were left out (`recipes/prepare-chitchat.yaml`). Stage 1 began with random "
    "weights (`recipes/shipped-stage1.yaml`); nothing else was ever read by this model."
)
LIMITS = (
    "A few million weights and some 86 000 pairs of short messages: it has small talk and nothing else. It knows no "
    "facts, takes one message of context, does not follow instructions, and often replies beside the point. The "
    "screens are patterns: they miss what no pattern can know, so a reply may still hold a first name or something "
    "rude. It is meant to show what polyreply does and to start trainings from; do not let it speak to people on your "
    "behalf."
)


def ship(run: Path, scores: Path | None = None) -> None:
    """Writes the shipped model from a run folder, with its card."""
    recipe = load_recipe(TrainRecipe, run / "recipe.yaml")
    model = PolyReply.from_pretrained(run / "model")
    found = load_scores(scores) if scores else None
    facts = CardFacts(
        title="polyreply's own small model",
        data=DATA,
        limits=LIMITS,
        language="en",
        license="apache-2.0",
        recipe=to_tree(recipe),
        scores={name: value for name, value in found.numbers.items() if value is not None} if found else {},
        signature=str(found.signature) if found else "",
        examples=tuple(_example(model, message) for message in MESSAGES),
    )
    model.model.config.backbone["_name_or_path"] = "mini"
    model.model.half()  # type: ignore[no-untyped-call]
    model.save_pretrained(FOLDER, card=facts, overwrite=True)


def _example(model: PolyReply, message: str) -> Example:
    return Example((message,), tuple(reply.text for reply in model.reply(message)))


if __name__ == "__main__":
    ship(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
