"""table-architecture: thin adapters against full decoders, by parameters and BLEU2-F."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from safetensors import safe_open

from polyreply.experiments import paper
from polyreply.experiments.cache import Task
from polyreply.experiments.catalogue import Experiment
from polyreply.experiments.claims import Claim, check, times
from polyreply.experiments.result import Findings
from polyreply.experiments.score_table import score_table, training_notes
from polyreply.experiments.systems import Systems
from polyreply.experiments.variants import EQHARD
from polyreply.models.shipped import SHIPPED
from polyreply.tables import Row, Table
from polyreply.training.recipe import MINI

ADAPTER = replace(EQHARD, name="Multi-adapter", settings={"model.architecture": "multi-adapter"})
DECODER = replace(
    EQHARD,
    name="Multi-decoder",
    settings={"model.architecture": "multi-decoder", "model.copy_embeddings": True},
)
"""Each full decoder has its own embedding, as the paper counts its 451M."""
ROWS = (ADAPTER, DECODER)
_SMALL = "A small model has small decoders: adapters save less here than they do on T5-small."
CLAIMS = (
    Claim(
        "Adapters need at most a third of the parameters",
        "Appendix B",
        times(ADAPTER.name, DECODER.name, "parameters", at_most=1 / 3),
    ),
    Claim(
        "Adapters keep at least 85 % of the full decoders' BLEU2-F",
        "Appendix B",
        times(ADAPTER.name, DECODER.name, "bleu2_f", at_least=0.85),
    ),
)


def _tasks(systems: Systems) -> Sequence[Task]:
    return systems.all_scores(ROWS)


def _report(systems: Systems, folder: Path) -> Findings:
    scored, theirs = score_table(systems, "All numbers of both architectures", ROWS), paper.ARCHITECTURE.numbers
    trained = [variant for variant in ROWS if variant.name in scored.numbers]
    numbers, rows = {}, []
    for variant in trained:
        run = systems.cache.get(systems.training(variant, systems.preset.seeds[0]))
        own = {**scored.numbers[variant.name], "parameters": _count_parameters(run / "model") / 1e6}
        numbers[variant.name] = own
        rows.append(Row([variant.name, own["parameters"], own["bleu2_f"]]))
        published = theirs[variant.name]
        name = f"paper, {paper.ARCHITECTURE.dataset}"
        rows.append(Row([name, published["parameters"], published["bleu2_f"]], muted=True))
    columns = ["decoders", "parameters, millions", "BLEU2-F"]
    return Findings(
        [Table("Architectures", columns, rows, training_notes(systems, trained)), scored.table],
        verdicts=check(CLAIMS, numbers, theirs),
        remarks=[_SMALL] if systems.preset.model.backbone in (MINI, SHIPPED) else [],
        numbers={**scored.tree(), "means": numbers},
        signatures=scored.signatures,
    )


def _count_parameters(model: Path) -> int:
    """The number of weights in a model folder."""
    with safe_open(model / "model.safetensors", "np") as weights:
        names = weights.keys()
        return sum(math.prod(weights.get_slice(name).get_shape()) for name in names)


EXPERIMENT = Experiment(_tasks, _report)
