"""The model card: the README.md of a model folder, written from what is known. What is not known is left out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from polyreply.metrics.registry import label
from polyreply.models.model import PolyReplyModel
from polyreply.tables import Table, escape_markdown

_ADAPT = {"response": "response", "everything": "context and the response"}


@dataclass(frozen=True)
class Example:
    """A context and the reply of each decoder to it."""

    context: tuple[str, ...]
    replies: tuple[str, ...]


@dataclass(frozen=True)
class CardFacts:
    """What a model itself does not know: where it comes from and how good it is."""

    title: str = ""
    """What to call the model."""
    name: str = ""
    """What loads it: `PolyReply.from_pretrained(name)`."""
    data: str = ""
    """What it was trained on, in a sentence or a name."""
    datasets: tuple[str, ...] = ()
    """Names of Hugging Face datasets among the data."""
    language: str = ""
    """ISO code of the language it speaks."""
    license: str = ""
    """Identifier of the license of the weights."""
    limits: str = ""
    """What it cannot do and should not be used for."""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    """The resolved recipe of the training."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """Scores in percent, by the names of a scores file."""
    signature: str = ""
    """The string that reproduces the scores."""
    examples: tuple[Example, ...] = ()
    """A few contexts with the reply of each decoder."""


def model_card(model: PolyReplyModel, facts: CardFacts | None = None) -> str:
    """The text of README.md."""
    facts = facts or CardFacts()
    blocks = [
        f"---\n{yaml.safe_dump(_metadata(model, facts), sort_keys=False, allow_unicode=True)}---",
        f"# {facts.title or f'A dialogue model with {model.num_decoders} decoders'}",
        f"One message in, {model.num_decoders} different replies out: one from each decoder, in one pass.",
        _usage(facts.name),
        "## The model",
        _table(("", ""), _about(model)),
        *_origin(facts),
        *_quality(facts),
        *_examples(facts.examples, model.config.manners),
    ]
    return "\n\n".join(blocks) + "\n"


def _metadata(model: PolyReplyModel, facts: CardFacts) -> dict[str, Any]:
    """The front matter that the Hugging Face hub reads."""
    name = model.config.backbone_name
    known: dict[str, Any] = {
        "library_name": "polyreply",
        "pipeline_tag": "text2text-generation" if model.config.is_encoder_decoder else "text-generation",
        "tags": ["polyreply", "dialogue", "diverse-generation", model.config.architecture],
        "language": facts.language,
        "license": facts.license,
        "base_model": name if "/" in name else "",
        "datasets": list(facts.datasets),
    }
    return {key: value for key, value in known.items() if value}


def _usage(name: str) -> str:
    return (
        "```python\nfrom polyreply import PolyReply\n\n"
        f'model = PolyReply.from_pretrained("{name or "path/or/name/of/this/model"}")\n'
        'for reply in model.reply("I finally passed my driving test!"):\n'
        "    print(reply.decoder, reply.logprob, reply.text)\n```"
    )


def _about(model: PolyReplyModel) -> list[tuple[str, str]]:
    config = model.config
    name, kind = config.backbone_name, config.backbone["model_type"]
    rows = [
        ("backbone", f"{name} ({kind})" if name else kind),
        ("architecture", config.architecture),
        ("decoders (K)", str(config.num_decoders)),
        ("parameters", f"{sum(parameter.numel() for parameter in model.parameters()):,}"),
        ("of which the decoders' own", f"{sum(parameter.numel() for parameter in model.decoder_parameters()):,}"),
        ("prior over decoders", config.prior),
        ("longest context", f"{config.format().max_context_tokens} tokens"),
    ]
    if model.adapters:
        first: Any = model.adapters[0]
        rows.insert(
            3, ("adapters", f"{first.describe()}, at {len(model.adapters)} sites, on the {_ADAPT[config.adapt]}")
        )
    return rows


def _origin(facts: CardFacts) -> list[str]:
    blocks = []
    if facts.data:
        blocks += ["## Data", facts.data]
    if facts.limits:
        blocks += ["## Limits", facts.limits]
    if facts.recipe:
        text = yaml.safe_dump(dict(facts.recipe), sort_keys=False, allow_unicode=True)
        blocks += ["## Recipe", f"```yaml\n{text}```"]
    return blocks


def _quality(facts: CardFacts) -> list[str]:
    if not facts.scores:
        return []
    rows = [(label(name), value) for name, value in facts.scores.items()]
    blocks = ["## Scores", _table(("score", "%"), rows)]
    return [*blocks, f"Signature: `{facts.signature}`"] if facts.signature else blocks


def _examples(examples: Sequence[Example], manners: Sequence[str]) -> list[str]:
    """The examples; where decoders have manners, beside each reply what its decoder tends to do."""
    blocks = ["## Example replies"] if examples else []
    for example in examples:
        blocks.append("\n".join(f"> {escape_markdown(turn)}  " for turn in example.context))
        if manners:
            rows = zip(range(len(manners)), manners, example.replies, strict=True)
            blocks.append(_table(("decoder", "manner", "reply"), list(rows)))
        else:
            blocks.append(_table(("decoder", "reply"), list(enumerate(example.replies))))
    return blocks


def _table(headings: Sequence[str], rows: Sequence[Sequence[str | float]]) -> str:
    return Table("", headings, rows).render("markdown").strip()
