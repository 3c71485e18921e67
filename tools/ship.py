"""Puts a trained model into the package: `python -m tools.ship RUN`, for those who make a release.

Weights become float16, which halves them; `PolyReply.from_pretrained` turns them back into float32.
"""

import sys
from pathlib import Path
from typing import Any

from polyreply.config import load_recipe, to_tree
from polyreply.demo import GENERATION, MESSAGES
from polyreply.metrics import load_scores
from polyreply.metrics.registry import PAPER_NUMBERS
from polyreply.models.backbones import SHIPPED, SHIPPED_FOLDER
from polyreply.models.card import CardFacts, Example
from polyreply.reply import PolyReply
from polyreply.training.recipe import TrainRecipe

DATA = (
    "chitchat (the package `chitchat-dataset`, MIT): real conversations of students who were asked to chat with a "
    "stranger. Only messages and replies of 2 to 25 words; utterances with personal data, abuse or words that give "
    "away where the conversations come from were left out (`recipes/prepare-chitchat.yaml`). Stage 1 began with random "
    "weights (`recipes/shipped-stage1.yaml`); nothing else was ever read by this model. The "
    "scores are those of the first 1000 contexts of its test split."
)
LIMITS = (
    "A few million weights and some 65 000 pairs of short messages: it has small talk and nothing else. It knows no "
    "facts, takes one message of context, does not follow instructions, often replies beside the point, and has learnt "
    "some sentences of its conversations by heart. The screens are patterns: they miss what no pattern can know, so a "
    "reply may still hold a first name or something rude. It is meant to show what polyreply does and to start "
    "trainings from; do not let it speak to people on your behalf."
)
_OF_STAGE_1 = ("mini", "vocab_size", "tokenizer")


def ship(run: Path, scores: Path | None = None) -> None:
    """Writes the shipped model from a run folder, with its card."""
    recipe = load_recipe(TrainRecipe, run / "recipe.yaml")
    model = PolyReply.from_pretrained(run / "model")
    found = load_scores(scores) if scores else None
    facts = CardFacts(
        title="polyreply's own small model",
        name=SHIPPED,
        data=DATA,
        limits=LIMITS,
        language="en",
        license="apache-2.0",
        recipe=_without_what_stage_1_decides(to_tree(recipe)),
        scores={name: found.numbers[name] or 0.0 for name in PAPER_NUMBERS} if found else {},
        signature=str(found.signature) if found else "",
        examples=tuple(_example(model, message) for message in MESSAGES),
    )
    model.model.config.backbone["_name_or_path"] = "mini"
    model.model.generation_config.update(**GENERATION)
    model.model.half()  # type: ignore[no-untyped-call]
    model.save_pretrained(SHIPPED_FOLDER, card=facts, overwrite=True)


def _without_what_stage_1_decides(recipe: dict[str, Any]) -> dict[str, Any]:
    """A backbone that is there has its size and its vocabulary: what a recipe says of them is for others."""
    return {**recipe, "model": {name: recipe["model"][name] for name in recipe["model"] if name not in _OF_STAGE_1}}


def _example(model: PolyReply, message: str) -> Example:
    return Example((message,), tuple(reply.text for reply in model.reply(message, **GENERATION)))


if __name__ == "__main__":
    ship(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
