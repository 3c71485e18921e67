"""The paper's numbers, with the table or figure they are from.

"An Equal-Size Hard EM Algorithm for Diverse Dialogue Generation" (Wen, Hao, Cao and Mou, ICLR 2023).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from polyreply.metrics import PAPER_NUMBERS

Numbers = Mapping[str, Mapping[str, float]]
"""For each system its numbers by their names."""


@dataclass(frozen=True)
class Published:
    """What the paper reports on one dataset."""

    source: str
    dataset: str
    numbers: Numbers = field(default_factory=dict)


def _nine(rows: str) -> dict[str, dict[str, float]]:
    """Parse lines of a name, a colon and the nine numbers in the paper's order."""
    numbers = {}
    for line in rows.strip().splitlines():
        name, _, values = line.strip().rpartition(":")
        numbers[name] = dict(zip(PAPER_NUMBERS, map(float, values.split()), strict=True))
    return numbers


_WEIBO, _SUBTITLES = "Weibo", "OpenSubtitles"
_NAMES = {"weibo": _WEIBO, "opensubtitles": _SUBTITLES}

_MAIN = {
    "weibo": """
        Beam search:      18.59 25.59 14.60  8.51 17.57 5.62 10.41 14.17 65.46
        Nucleus sampling: 20.76 26.13 17.23 10.03 17.44 7.04 16.90 23.79 44.55
        AdaLabel:         14.80 21.63 11.25  5.86 13.72 3.72 10.41 14.71 62.46
        DialogBERT:       15.99 15.88 16.10  3.55  3.95 3.23 68.95 96.76  0.01
        EqHard-EM:        22.65 26.17 19.96 10.13 14.55 7.77 27.03 42.02 22.32""",
    "opensubtitles": """
        Beam search:      14.39 11.23 20.01  3.46  2.40 6.22 13.38 20.71 42.76
        Nucleus sampling: 16.03 11.21 28.13  2.51  1.47 8.48 60.50 91.26  0.29
        AdaLabel:         15.80 11.94 23.38  3.20  2.19 5.94 26.47 43.57 17.21
        DialogBERT:       12.86  8.71 24.50  1.20  0.68 4.94 69.70 96.49  0.02
        EqHard-EM:        17.86 12.98 28.60  3.76  2.36 9.27 34.09 50.41 13.15""",
}
_EM = {
    "weibo": """
        Beam search:      18.59 25.59 14.60  8.51 17.57 5.62 10.41 14.17 65.46
        Soft-EM:          17.02 27.55 12.32  6.27 16.03 3.89 10.69 12.45 86.25
        Hard-EM:           4.81  3.09 10.84  2.15  1.61 3.22  4.01  4.11  0.00
        EqRandom-Dynamic: 18.72 27.34 14.23  7.21 15.87 4.66 12.79 16.30 71.19
        EqRandom-Fixed:   20.01 25.51 16.46  8.12 14.41 5.65 19.40 25.77 46.60
        EqHard-EM:        22.65 26.17 19.96 10.13 14.55 7.77 27.03 42.02 22.32""",
    "opensubtitles": """
        Beam search:      14.39 11.23 20.01  3.46  2.40 6.22 13.38 20.71 42.76
        Soft-EM:          15.48 14.55 16.54  3.03  2.76 3.35 12.89 15.35 72.95
        Hard-EM:           6.84  4.13 19.81  1.25  0.73 4.30  4.83  4.81  1.50
        EqRandom-Dynamic: 15.80 14.56 17.27  2.92  2.56 3.40 14.52 18.57 70.12
        EqRandom-Fixed:   15.89 14.59 17.46  2.93  2.56 3.43 14.73 18.96 68.89
        EqHard-EM:        17.86 12.98 28.60  3.76  2.36 9.27 34.09 50.41 13.15""",
}
_ABLATION = {
    "weibo": """
        Soft-EM, uniform prior:             17.02 27.55 12.32  6.27 16.03 3.89 10.69 12.45 86.25
        Soft-EM, uniform prior, no dropout: 17.13 27.53 12.43  6.30 16.02 3.92 10.88 12.77 84.77
        Soft-EM, learned prior:             10.33  8.63 12.86  3.18  2.76 3.74 27.89 54.53  1.09
        Soft-EM, learned prior, no dropout: 13.58 12.95 14.27  4.50  4.66 4.35 20.56 38.31  4.02
        Hard-EM, uniform prior:              4.81  3.09 10.84  2.15  1.61 3.22  4.01  4.11  0.00
        Hard-EM, uniform prior, no dropout:  5.17  3.39 10.86  2.25  1.71 3.27  3.51  3.60  2.22
        Hard-EM, learned prior:              5.07  3.30 10.92  2.14  1.61 3.20  5.22  5.38  0.00
        Hard-EM, learned prior, no dropout:  4.83  3.11 10.81  2.32  1.78 3.31  9.65 10.02  0.02
        EqHard-EM:                          22.65 26.17 19.96 10.13 14.55 7.77 27.03 42.02 22.32""",
    "opensubtitles": """
        Soft-EM, uniform prior:             15.48 14.55 16.54  3.03  2.76 3.35 12.89 15.35 72.95
        Soft-EM, uniform prior, no dropout: 15.52 14.51 16.67  3.00  2.71 3.37 13.23 15.93 70.29
        Soft-EM, learned prior:             15.45 14.52 16.50  3.01  2.76 3.31 13.01 15.45 71.86
        Soft-EM, learned prior, no dropout: 15.47 14.48 16.60  2.95  2.71 3.25 13.40 16.17 67.46
        Hard-EM, uniform prior:              6.84  4.13 19.81  1.25  0.73 4.30  4.83  4.81  1.50
        Hard-EM, uniform prior, no dropout:  9.20  5.66 24.54  1.56  0.88 6.82  9.87 10.60  0.61
        Hard-EM, learned prior:              4.71  2.73 17.11  0.81  0.46 3.31  6.82  5.57  0.23
        Hard-EM, learned prior, no dropout:  4.70  2.67 19.85  0.70  0.38 3.80  8.60  6.57  0.00
        EqHard-EM:                          17.86 12.98 28.60  3.76  2.36 9.27 34.09 50.41 13.15""",
}


def table_main(dataset: str) -> Published:
    """Quality and diversity of all systems (Table 1)."""
    return Published("Table 1", _NAMES[dataset], _nine(_MAIN[dataset]))


def table_em(dataset: str) -> Published:
    """The EM variants (Table 2)."""
    return Published("Table 2", _NAMES[dataset], _nine(_EM[dataset]))


def table_ablation(dataset: str) -> Published:
    """Priors and dropout (the appendix's table of additional EM variants)."""
    return Published("Appendix F, the table of additional EM variants", _NAMES[dataset], _nine(_ABLATION[dataset]))


ARCHITECTURE = Published(
    "Appendix B, adapter against full Transformer",
    _WEIBO,
    {
        "Multi-adapter": {"parameters": 108.0, "bleu2_f": 10.13},
        "Multi-decoder": {"parameters": 451.0, "bleu2_f": 11.08},
    },
)
"""Parameters in millions."""
EFFICIENCY = Published(
    "Appendix G, efficiency",
    "an i9-9900X and a TITAN RTX",
    {
        "training": {"e_step": 75.69, "m_step": 24.31, "assignment": 0.97},
        "Beam search": {"samples_per_second": 16.9},
        "EqHard-EM": {"samples_per_second": 79.1},
    },
)
"""The paper counts the Hungarian algorithm as a part of the E-step, so its shares add up to more than 100."""
HUMAN = Published(
    "Appendix D, human evaluation",
    _WEIBO,
    {
        "quality, EqHard-EM": {"wins": 48.2, "ties": 19.0, "losses": 32.8},
        "quality, Beam search": {"wins": 32.8, "ties": 19.0, "losses": 48.2},
        "diversity, EqHard-EM": {"wins": 87.2, "ties": 8.0, "losses": 4.8},
        "diversity, Beam search": {"wins": 4.8, "ties": 8.0, "losses": 87.2},
    },
)
"""By question and system, in percent of 500 judgements."""
ASSIGNMENT = Published(
    "Figure 2 and its text",
    _WEIBO,
    {"Soft-EM": {"starved": 0.0}, "Hard-EM": {"starved": 90.0}, "EqHard-EM": {"starved": 0.0}},
)
"""The picture's bars are not in the text; "only Decoder 6 is trained" is: nine of ten get nothing."""
