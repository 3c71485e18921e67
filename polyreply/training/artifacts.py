"""What a finished run leaves behind: the model folder with its card, usage and plots; and what trackers receive."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from polyreply.analysis.manners import find_manners
from polyreply.config import to_tree
from polyreply.em.em_step import StepRecord
from polyreply.models.card import CardFacts, Example
from polyreply.plots import can_plot
from polyreply.reply import PolyReply
from polyreply.training.recipe import TrainRecipe
from polyreply.training.usage import UsageStatistics, plot_assignment, plot_usage, write_usage

_EXAMPLES = 3
"""Validation contexts whose replies the model card shows."""
_ENOUGH = 20
"""Validation contexts from which on their replies tell what a decoder tends to do."""


def write_results(
    folder: Path,
    recipe: TrainRecipe,
    poly: PolyReply,
    usage: UsageStatistics,
    scores: Mapping[str, float],
    replies: Sequence[Mapping[str, Any]],
) -> None:
    """Write the model folder with its card, and what the decoders were trained on as numbers and plots.

    `replies` to the validation contexts show what the decoders tend to do, and the card has the first of them.
    """
    facts = CardFacts(data=Path(recipe.data).name, recipe=to_tree(recipe), scores=scores)
    if not recipe.has_one_decoder:
        texts_CK = [reply["responses"] for reply in replies]
        if len(texts_CK) >= _ENOUGH:
            poly.model.config.manners = find_manners(texts_CK, recipe.validation.tokenizer)
        shown = (Example(tuple(reply["context"]), tuple(reply["responses"])) for reply in replies[:_EXAMPLES])
        facts = replace(facts, examples=tuple(shown))
    poly.save_pretrained(folder / "model", card=facts, backbone=recipe.model.save, overwrite=True)
    if recipe.has_one_decoder:
        return
    summary = usage.summary(recipe.method)
    write_usage(folder / "usage.json", summary)
    if recipe.plots and can_plot():
        plot_usage(summary, folder / "usage.png")
        plot_assignment({recipe.method: summary}, folder / "assignment.png")


def tracker_values(record: StepRecord) -> dict[str, float]:
    """The numbers of a step for TensorBoard or Weights & Biases, with one series for each decoder's usage."""
    fields = dataclasses.asdict(record)
    del fields["weight_std_K"]
    series = {f"usage/{k}": share for k, share in enumerate(fields.pop("usage_K"))}
    series |= {f"loss/{name}": value for name, value in fields.pop("losses").items()}
    return {name: value for name, value in {**fields, **series}.items() if value is not None}
