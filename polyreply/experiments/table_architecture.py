"""table-architecture: thin adapters against full decoders, by parameters and BLEU2-F."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from safetensors import safe_open

from polyreply.experiments import paper
from polyreply.experiments.catalogue import Experiment
from polyreply.experiments.claims import Claim, check, times
from polyreply.experiments.result import Findings, Number, Row, Table
from polyreply.experiments.score_table import score_table, training_notes
from polyreply.experiments.stage import Stage
from polyreply.experiments.systems import Lab
from polyreply.experiments.variants import EQHARD, changed
from polyreply.models.shipped import SHIPPED
from polyreply.training.recipe import MINI

ADAPTER = replace(changed(EQHARD, "", {"model.architecture": "multi-adapter"}), name="Multi-adapter")
DECODER = replace(
    changed(EQHARD, "", {"model.architecture": "multi-decoder", "model.copy_embeddings": True}), name="Multi-decoder"
)
"""Each full decoder with an embedding of its own, as the paper counts its 451M."""
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


def _needs(lab: Lab) -> Sequence[Stage]:
    return lab.all_scores(ROWS)


def _report(lab: Lab, folder: Path) -> Findings:
    scored, theirs = score_table(lab, "All numbers of both architectures", ROWS), paper.ARCHITECTURE.numbers
    numbers = {
        variant.name: {
            **scored.numbers[variant.name],
            "parameters": count_parameters(lab.model_folder(variant, lab.preset.seeds[0])) / 1e6,
        }
        for variant in ROWS
        if variant.name in scored.numbers
    }
    rows = []
    for name, found in numbers.items():
        rows.append(_row(name, found["parameters"], found["bleu2_f"]))
        rows.append(_row(f"paper, {paper.ARCHITECTURE.dataset}", **theirs[name], is_paper=True))
    notes = training_notes(lab, [variant for variant in ROWS if variant.name in numbers])
    table = Table("Architectures", ["decoders", "parameters, millions", "BLEU2-F"], rows, notes)
    return Findings(
        [table, scored.table],
        verdicts=check(CLAIMS, numbers, theirs),
        remarks=[_SMALL] if lab.preset.model.backbone in (MINI, SHIPPED) else [],
        numbers={**scored.tree(), "means": numbers},
        signatures=scored.signatures,
    )


def _row(name: str, parameters: float, bleu2_f: float, *, is_paper: bool = False) -> Row:
    return Row([name, Number(parameters), Number(bleu2_f)], is_paper=is_paper)


def count_parameters(folder: Path) -> float:
    """The numbers a model folder holds."""
    total = 0
    with safe_open(folder / "model.safetensors", "np") as weights:
        for name in weights.keys():  # noqa: SIM118 - it is no dictionary
            size = 1
            for length in weights.get_slice(name).get_shape():
                size *= length
            total += size
    return float(total)


EXPERIMENT = Experiment(_needs, _report)
