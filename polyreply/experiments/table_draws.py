"""table-draws: E-steps that draw whole contexts against E-steps that draw pairs, and what could explain a difference.

A method has one learning rate for both, chosen where it draws pairs, so that they differ in the draws alone. Replies
are scored on final contexts. There it is also measured how sure the posterior is of a decoder, and over how many
decoders it spreads the responses to one context: more than by chance if they compete for decoders.

Legend: N pairs, C contexts, K decoders.
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import mean, stdev

import numpy as np

from polyreply.analysis.recovery import held_out_ids, held_out_likelihoods
from polyreply.arrays import Ints
from polyreply.data.folder import write_dialogues
from polyreply.data.read import read_dialogues
from polyreply.em.posterior import captured, posterior
from polyreply.em.settings import EMSettings
from polyreply.experiments.cache import Task
from polyreply.experiments.catalogue import Experiment
from polyreply.experiments.claims import Best, Claim, best, check, corrected, times
from polyreply.experiments.result import Findings
from polyreply.experiments.score_table import score_table
from polyreply.experiments.systems import Systems
from polyreply.experiments.variants import EQHARD, HARD, Variant
from polyreply.files import write_file
from polyreply.models.score import Reduce
from polyreply.reply import PolyReply
from polyreply.tables import Cell, Column, Row, Table
from polyreply.training.run_log import read

_FILE, _SAMPLES = "posteriors.json", "pairs.jsonl"
_MOST_CONTEXTS = 100
"""Final contexts on which posteriors are measured, each with all its responses."""
EQ_PAIRS, HARD_PAIRS = (one.changed("", {"em.draw_by": "pairs"}) for one in (EQHARD, HARD))
EQ_CONTEXTS, HARD_CONTEXTS = (
    one.changed("draws of contexts", {"em.draw_by": "contexts"}, rate_of=one) for one in (EQ_PAIRS, HARD_PAIRS)
)
ROWS = (HARD_PAIRS, HARD_CONTEXTS, EQ_PAIRS, EQ_CONTEXTS)
_PROTOTYPES = 2
"""What was tried before; the remark names it."""
_COLUMNS = {
    "pairs": Column("pairs per draw", digits=1),
    "in_training": Column("max posterior in training", digits=3),
    "max_posterior": Column("max posterior, held out", digits=3),
    "captured": Column("captured, held out", digits=3),
    "decoders": Column("decoders per context"),
    "by_chance": Column("decoders by chance"),
}
_NOTES = (
    "max posterior: mean over pairs of the largest posterior, in the last quarter of the EM steps and held out",
    "captured: 0 if all decoders are alike, 1 if a single decoder explains each response",
    "decoders per context: how many decoders are the best for the responses to one held-out context; by chance: if the "
    "best decoder did not depend on the context",
)


def _claim(text: str, one: Variant, other: Variant) -> Claim:
    return Claim(text, "ours", best(one.name, "bleu2_f", [one.name, other.name]))


_BOTH = EQ_CONTEXTS.name, EQ_PAIRS.name
CLAIMS = (
    _claim("EqHard-EM has a better BLEU2-F with draws of contexts", EQ_CONTEXTS, EQ_PAIRS),
    Claim("Its Dist-2 is no lower", "ours", times(*_BOTH, "dist2", at_least=1)),
    Claim("Its Pairwise-BLEU is no higher", "ours", times(*_BOTH, "pairwise_bleu", at_most=1)),
    _claim("Hard-EM has a better BLEU2-F with draws of contexts", HARD_CONTEXTS, HARD_PAIRS),
    _claim("EqHard-EM with draws of contexts has a better BLEU2-F than Hard-EM", EQ_CONTEXTS, HARD_PAIRS),
)


def _tasks(systems: Systems) -> Sequence[Task]:
    posteriors = [_posteriors(systems, one, seed) for one in ROWS for seed in systems.seeds(one)]
    return [*systems.all_scores(ROWS), *posteriors]


def _posteriors(systems: Systems, variant: Variant, seed: int) -> Task:
    """How sure the posterior of a trained variant is, and over how many decoders it spreads a context's responses."""
    trained, final, likelihood = systems.training(variant, seed), systems.data.final, systems.preset.em.likelihood
    contexts = min(_MOST_CONTEXTS, systems.preset.contexts)
    inputs = {"model": trained.name, "data": final.name, "contexts": contexts, "likelihood": likelihood}
    compute = partial(_measure, trained, systems.data.final_file, contexts, likelihood)
    work = systems.work("posteriors", contexts * systems.num_decoders, variant)
    return systems.cache.task("posteriors", variant.method, inputs, compute, [trained, final], work)


def _measure(trained: Task, data: Path, contexts: int, likelihood: Reduce, out: Path) -> None:
    dialogues = list(islice(read_dialogues(data), contexts))
    write_dialogues(out / _SAMPLES, dialogues)
    context_N = np.repeat(np.arange(len(dialogues)), [len(one.responses) for one in dialogues])
    context_N = context_N[held_out_ids(len(context_N), len(context_N))]  # in the order of the likelihoods
    model = PolyReply.from_pretrained(trained.path / "model").to("auto")
    found = held_out_likelihoods(model, out / _SAMPLES, len(context_N), EMSettings(likelihood=likelihood))
    nll_NK, posterior_NK = found.nll_NK.numpy(), posterior(found.nll_NK.numpy(), found.log_prior_NK.numpy())
    decoders, by_chance = spread(posterior_NK.argmax(1), context_N, nll_NK.shape[1])
    measures = {
        "captured": captured(nll_NK),
        "max_posterior": float(posterior_NK.max(1).mean()),
        "decoders": decoders,
        "by_chance": by_chance,
    }
    write_file(out / _FILE, json.dumps(measures), overwrite=True)


def spread(best_N: Ints, context_N: Ints, num_decoders: int) -> tuple[float, float]:
    """Over how many decoders the responses to a context are spread, and over how many they would be by chance.

    Means over contexts. By chance: every response has its decoder by the shares of all responses.
    """
    count_CK = np.zeros((context_N.max() + 1, num_decoders))
    np.add.at(count_CK, (context_N, best_N), 1)
    missed_CK = (1 - count_CK.sum(0) / len(best_N)) ** count_CK.sum(1, keepdims=True)
    return float((count_CK > 0).sum(1).mean()), float((1 - missed_CK).sum(1).mean())


def _measured(systems: Systems, variant: Variant, seed: int) -> dict[str, float]:
    """A number for each column."""
    log = read(systems.cache.get(systems.training(variant, seed)) / "log.jsonl")
    steps = [line for line in log if line["kind"] == "step"]
    path = systems.cache.get(_posteriors(systems, variant, seed)) / _FILE
    return {
        "pairs": mean(line["samples"] for line in steps),
        "in_training": mean(line["max_posterior"] for line in steps[-len(steps) // 4 :]),
        **json.loads(path.read_text(encoding="utf-8")),
    }


def _report(systems: Systems, folder: Path) -> Findings:
    scored = score_table(systems, "Scores of their replies", ROWS, baseline=EQ_PAIRS.name)
    trained = [one for one in ROWS if one.name in scored.numbers]
    seeds = {one.name: [_measured(systems, one, seed) for seed in systems.seeds(one)] for one in trained}
    rows = [Row([name, *(_cell(runs, key) for key in _COLUMNS)]) for name, runs in seeds.items()]
    comparisons = sum(isinstance(claim.judge, Best) for claim in CLAIMS)
    tries = comparisons + _PROTOTYPES
    return Findings(
        [scored.table, Table("Their posteriors", ["method", *_COLUMNS.values()], rows, _NOTES)],
        verdicts=check(CLAIMS, scored.numbers, test=corrected(scored.test, tries)),
        remarks=[
            f"p-values of claims are multiplied by {tries}: {comparisons} comparisons here, and {_PROTOTYPES} "
            "prototypes before them on circa (draws of contexts, and all responses to a context on different "
            "decoders). Those of stars are not."
        ],
        numbers={**scored.tree(), "posteriors": seeds},
        signatures=scored.signatures,
    )


def _cell(runs: Sequence[Mapping[str, float]], key: str) -> Cell:
    values = [run[key] for run in runs]
    return Cell(mean(values), stdev(values) if len(values) > 1 else None)


EXPERIMENT = Experiment(_tasks, _report, has_all_seeds=True)
