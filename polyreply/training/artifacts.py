"""What a run tells a tracker, and what a finished one leaves behind: the model, usage and pictures."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from polyreply.config import to_tree
from polyreply.data.dialogue import Dialogue
from polyreply.models.card import CardFacts
from polyreply.plots import can_plot
from polyreply.training import plots
from polyreply.training.recipe import TrainRecipe
from polyreply.training.record import StepRecord
from polyreply.training.setup import Setup
from polyreply.training.usage import UsageStatistics, write_usage

_EXAMPLES = 3


def numbers(record: StepRecord) -> dict[str, float]:
    """What a tracker is told of a step."""
    fields = dataclasses.asdict(record)
    del fields["weight_std_K"]
    usage = {f"usage/{k}": share for k, share in enumerate(fields.pop("usage_K"))}
    return {name: value for name, value in {**fields, **usage}.items() if value is not None}


def write(
    folder: Path,
    recipe: TrainRecipe,
    setup: Setup,
    usage: UsageStatistics,
    scores: dict[str, float],
    examples: Sequence[Dialogue],
) -> None:
    """The model folder with its card, and what the decoders were trained on as numbers and pictures."""
    facts = CardFacts(data=Path(recipe.data).name, recipe=to_tree(recipe), scores=scores)
    shown = [] if recipe.method == "mle" else [dialogue.context for dialogue in examples[:_EXAMPLES]]
    setup.poly.save_pretrained(folder / "model", card=facts, examples=shown, overwrite=True)
    if recipe.method == "mle":
        return
    summary = usage.summary(recipe.method)
    write_usage(folder / "usage.json", summary)
    if can_plot():
        plots.plot_usage(summary, folder / "usage.png")
        plots.plot_assignment({recipe.method: summary}, folder / "assignment.png")
