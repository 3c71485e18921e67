"""Who judges what, on which side and when, so that chance favours no system and no annotator works more than others."""

import random
from collections.abc import Hashable, Sequence
from typing import TypeVar

T = TypeVar("T")
_EARLY, _LATE = 0.4, 0.6
"""Repeated are comparisons from the first part of an annotator's list, and their repeats are in the last part."""


def share_out(strata: Sequence[Sequence[int]], annotators: int, votes: int, rng: random.Random) -> list[list[int]]:
    """For each annotator the comparisons to judge: each comparison goes to `votes` different annotators.

    The loads of any two annotators differ by at most one comparison. Within a stratum (one question about one pair of
    systems) they differ by at most two, and who judges together is random.
    """
    loads: list[list[int]] = [[] for _ in range(annotators)]
    for stratum in strata:
        before = [len(load) for load in loads]
        for comparison in rng.sample(stratum, len(stratum)):
            ranked = sorted(range(annotators), key=lambda n: (len(loads[n]), len(loads[n]) - before[n], rng.random()))
            for annotator in ranked[:votes]:
                loads[annotator].append(comparison)
    return loads


def balanced_sides(edges: Sequence[tuple[int, int]], rng: random.Random) -> list[bool]:
    """For each (annotator, comparison) whether to exchange sides, at random and as often as not.

    For every annotator, and for every comparison, the two sides differ by at most one. Annotators and comparisons are
    the two halves of a bipartite graph. Extra edges make all degrees even; then the edges fall into closed walks, all
    of even length, and alternating along each walk gives every vertex as many edges of one kind as of the other.
    """
    ends: list[tuple[Hashable, Hashable]] = [(("annotator", one), ("comparison", two)) for one, two in edges]
    ends += _even_out(ends)
    open_edges: dict[Hashable, list[int]] = {}
    for number in rng.sample(range(len(ends)), len(ends)):
        for end in ends[number]:
            open_edges.setdefault(end, []).append(number)
    swapped: list[bool | None] = [None] * len(ends)
    for start in list(open_edges):
        place, side = start, rng.random() < 0.5
        while (edge := _take_open(open_edges[place], swapped)) is not None:
            swapped[edge], side = side, not side
            one, two = ends[edge]
            place = two if place == one else one
    return [bool(side) for side in swapped[: len(edges)]]


def _even_out(ends: Sequence[tuple[Hashable, Hashable]]) -> list[tuple[Hashable, Hashable]]:
    """Edges from odd vertices to one more vertex in the other half, so that every degree is even."""
    extra: list[tuple[Hashable, Hashable]] = []
    for half, other in ((0, "comparison"), (1, "annotator")):
        degrees: dict[Hashable, int] = {}
        for edge in ends:
            degrees[edge[half]] = degrees.get(edge[half], 0) + 1
        extra += [(vertex, (other, None)) for vertex, degree in degrees.items() if degree % 2]
    if sum(("comparison", None) in edge for edge in extra) % 2:  # then both extra vertices are odd
        extra.append((("annotator", None), ("comparison", None)))
    return extra


def _take_open(numbers: list[int], swapped: Sequence[bool | None]) -> int | None:
    """The next edge of a vertex that no walk has used yet."""
    while numbers:
        number = numbers.pop()
        if swapped[number] is None:
            return number
    return None


def most_repeats(comparisons: int) -> int:
    """How many of an annotator's comparisons about one question can be repeated."""
    return int(_EARLY * comparisons)


def in_order(
    originals: Sequence[T], repeats: int, checks: Sequence[T], rng: random.Random
) -> tuple[list[T], list[bool]]:
    """The comparisons of one annotator about one question in random order, and which of them are repeats.

    A repeat is at least a fifth of the comparisons away from its original; gold checks may be anywhere.
    """
    order = rng.sample(originals, len(originals))
    again = sorted(rng.sample(range(int(_EARLY * len(order))), repeats))
    slots = sorted(rng.choices(range(int(_LATE * len(order)), len(order) + 1), k=repeats))
    marked = [(one, False) for one in order]
    for place, slot in reversed(list(zip(again, slots, strict=True))):
        marked.insert(slot, (order[place], True))
    for check in checks:
        marked.insert(rng.randint(0, len(marked)), (check, False))
    return [one for one, _ in marked], [is_repeat for _, is_repeat in marked]
