"""mode-recovery: whether the decoders find the ten acts of smalltalk, which no label tells them of."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from polyreply.data.smalltalk import ACTS
from polyreply.experiments.catalogue import Experiment
from polyreply.experiments.claims import Claim, check, over, within
from polyreply.experiments.pictures import draw_shares
from polyreply.experiments.recovery import HEADINGS, recover, recovery_stages, recovery_table
from polyreply.experiments.result import Findings, Picture, Row, Table
from polyreply.experiments.score_table import seeds_note
from polyreply.experiments.smalltalk import METHODS, Smalltalk
from polyreply.experiments.stage import Stage
from polyreply.experiments.systems import Lab

_FILE, _OURS = "acts.png", "EqHard-EM"
_DRAWN = (_OURS, "Hard-EM", "EqRandom-Dynamic")
_LINEAR = "Hard-EM, the authors' initialisation"
CLAIMS = (
    Claim(
        "EqHard-EM captures most of which decoder a reply is of (0 to 1)",
        "ours",
        within(_OURS, "captured", at_least=0.8),
    ),
    Claim("Random assignment captures next to nothing", "ours", within("EqRandom-Dynamic", "captured", at_most=0.2)),
    Claim(
        "EqHard-EM says more different acts to a context than Hard-EM from the authors' start",
        "ours",
        over(_OURS, _LINEAR, "acts"),
    ),
    Claim(
        "Hard-EM from the authors' start leaves decoders untrained (smallest share, %)",
        "Figure 2b",
        within(_LINEAR, "smallest_share", at_most=1),
    ),
)
_TITLES = {
    "valid": "Ten decoders on smalltalk: new contexts, known words",
    "unseen_words": "The same on contexts of templates and words that no training has seen",
}
_KEYS = ("captured", "max_posterior", "gain", "acts")


def _needs(lab: Lab) -> Sequence[Stage]:
    return recovery_stages(Smalltalk(lab.workshop, lab.preset.smalltalk), tuple(METHODS), lab.preset.smalltalk.seeds)


def _report(lab: Lab, folder: Path) -> Findings:
    sizes = lab.preset.smalltalk
    found = recover(lab.workshop, tuple(METHODS), sizes.seeds, sizes)
    numbers = {
        name: {key: mean(run[key] for run in runs) for key in _KEYS}
        | {"smallest_share": 100 * mean(min(run["training_usage"]) for run in runs)}
        for name, runs in found["valid"]["methods"].items()
    }
    shares = {name: found["valid"]["methods"][name][0]["act_shares"] for name in _DRAWN}
    draw_shares(shares, ACTS, folder / _FILE)
    return Findings(
        [_table(title, found[kind], sizes.seeds) for kind, title in _TITLES.items()],
        [Picture(_FILE, "What each decoder's replies do: share of its replies that carry each act, first seed.")],
        check(CLAIMS, numbers),
        ["This experiment is always on smalltalk, whatever data is named."],
        {**found, "means": numbers},
    )


def _table(title: str, found: Mapping[str, Any], seeds: Sequence[int]) -> Table:
    note = (
        f"A response costs {found['stage_1_nll']:.1f} nats after stage 1; one adapter with as many steps gains "
        f"{found['one_adapter_gain']:.2f}."
    )
    return Table(title, list(HEADINGS), [Row(list(row)) for row in recovery_table(found)], [note, seeds_note(seeds)])


def _origin(lab: Lab) -> dict[str, Any]:
    """Its own data and seeds, whatever the lab has."""
    sizes = lab.preset.smalltalk
    held_out = f"{sizes.pairs} pairs and {sizes.contexts} contexts that no training has seen, of each kind"
    return {"data": "smalltalk", "final_numbers_from": held_out, "seeds": list(sizes.seeds)}


EXPERIMENT = Experiment(_needs, _report, origin=_origin)
