"""What each number is called in tables, and whether more of it is better."""

from dataclasses import dataclass

_LOWER_IS_BETTER = frozenset({"pairwise_bleu", "self_bleu", "corpus_pairwise_bleu", "identical", "empty", "repeating"})
_NEITHER_IS_BETTER = frozenset({"length", "questions"})


@dataclass(frozen=True)
class Label:
    """A number's name, and its heading in two lines: what neighbouring columns have in common, and its own part."""

    full: str
    group: str
    own: str = ""
    narrow: tuple[str, str] = ("", "")
    """Two short lines for a terminal; the group and its own part, if not given."""

    @property
    def lines(self) -> tuple[str, str]:
        """The heading for a narrow column."""
        return self.narrow if any(self.narrow) else (self.group, self.own)


LABELS = {
    **{
        f"bleu{n}_{which}": Label(f"BLEU{n}-{which.upper()}", f"BLEU{n}", which.upper())
        for n in "1234"
        for which in "fpr"
    },
    **{f"dist{n}": Label(f"Dist-{n}", "Distinct n-gram", f"Dist-{n}", ("", f"Dist-{n}")) for n in "12"},
    "pairwise_bleu": Label("Pairwise-BLEU", "Pairwise BLEU", narrow=("Pair-", "wise")),
    "identical": Label("Identical pairs", "Identical", narrow=("Iden-", "tical")),
    "self_bleu": Label("Self-BLEU", "Self-BLEU", narrow=("Self-", "BLEU")),
    "corpus_pairwise_bleu": Label("Corpus Pairwise-BLEU", "Corpus Pairwise BLEU", narrow=("Corpus", "pairw.")),
    **{f"inter_dist{n}": Label(f"Inter Dist-{n}", "Inter", f"Dist-{n}") for n in "12"},
    "length": Label("Tokens per response", "Tokens", narrow=("", "Tokens")),
    "questions": Label("Questions %", "Questions", narrow=("Ques-", "tions")),
    "empty": Label("Empty %", "Empty", narrow=("", "Empty")),
    "repeating": Label("Repeating %", "Repeating", narrow=("Repea-", "ting")),
    **{
        f"embedding_{which}": Label(f"Embedding {which.upper()}", "Embedding", which.upper(), ("Emb.", which.upper()))
        for which in "fpr"
    },
    "embedding_diversity": Label("Embedding diversity", "Embedding", "Diversity", ("Emb.", "div.")),
}


def label(number: str) -> Label:
    """The label of a number; its own name for one that is not known here."""
    return LABELS.get(number) or Label(number, number, narrow=("", number))


def direction(number: str) -> int:
    """1 where higher is better, -1 where lower is, 0 for a number that only describes."""
    if number in _NEITHER_IS_BETTER or number not in LABELS:
        return 0
    return -1 if number in _LOWER_IS_BETTER else 1
