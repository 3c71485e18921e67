"""What a finished run leaves behind: the model folder with its card, usage and plots; and what trackers receive."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from polyreply.config import to_tree
from polyreply.data.dialogue import Dialogue
from polyreply.em.em_step import StepRecord
from polyreply.em.settings import MLE
from polyreply.models.card import CardFacts, Example
from polyreply.plots import can_plot
from polyreply.reply import PolyReply
from polyreply.training.recipe import TrainRecipe
from polyreply.training.usage import UsageStatistics, plot_assignment, plot_usage, write_usage

_EXAMPLES = 3
"""Validation contexts whose replies the model card shows."""


def write_results(
    folder: Path,
    recipe: TrainRecipe,
    poly: PolyReply,
    usage: UsageStatistics,
    scores: Mapping[str, float],
    examples: Sequence[Dialogue],
) -> None:
    """Write the model folder with its card, and what the decoders were trained on as numbers and plots."""
    facts = CardFacts(data=Path(recipe.data).name, recipe=to_tree(recipe), scores=scores)
    if recipe.method != MLE and examples:
        contexts = [dialogue.context for dialogue in examples[:_EXAMPLES]]
        replies = poly.reply(contexts, max_new_tokens=recipe.validation.max_new_tokens)
        pairs = zip(contexts, replies, strict=True)
        shown = tuple(Example(context, tuple(reply.text for reply in said)) for context, said in pairs)
        facts = replace(facts, examples=shown)
    poly.save_pretrained(folder / "model", card=facts, backbone=recipe.model.save, overwrite=True)
    if recipe.method == MLE:
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
    usage = {f"usage/{k}": share for k, share in enumerate(fields.pop("usage_K"))}
    return {name: value for name, value in {**fields, **usage}.items() if value is not None}
