"""New splits in which near-duplicate dialogues stay together.

Dialogues that resemble each other, directly or through others, form a component; whole components go to one split.
Only the components of the dialogues drawn for valid and test are worked out, so the cost follows their size.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.sparse import coo_matrix, csgraph

from polyreply.arrays import Ints
from polyreply.data.overlap import NearDuplicateIndex
from polyreply.data.sources import Split
from polyreply.data.workspace import Workspace
from polyreply.progress import Notify

_MOST_GROWTH = 10
"""Components are followed until they hold this many times the dialogues drawn; larger ones stay in train."""


def draw_together(
    workspace: Workspace, sizes: dict[Split, int], seed: int, threshold: float, notify: Notify
) -> dict[Split, Ints]:
    """Dialogues for test and valid, in about the sizes asked for, without a near-duplicate left in another split."""
    drawn = workspace.draw(sum(sizes.values()), seed)
    members, links, unfinished = _follow(workspace, drawn, threshold, notify)
    component = _components(members, links)
    stays_in_train = set(component[np.isin(members, unfinished)])
    place = np.searchsorted(members, drawn)
    order = [name for name in dict.fromkeys(component[place]) if name not in stays_in_train]
    weight = np.bincount(component)
    chosen: dict[Split, list[int]] = {"test": [], "valid": []}
    room = {split: sizes[split] for split in chosen}
    for name in order:
        split = next((split for split in chosen if weight[name] <= room[split]), None)
        if split:
            chosen[split].append(name)
            room[split] -= weight[name]
    return {split: members[np.isin(component, names)] for split, names in chosen.items()}


def _follow(workspace: Workspace, drawn: Ints, threshold: float, notify: Notify) -> tuple[Ints, Ints, Ints]:
    """The drawn dialogues and all that resemble them step by step; the links; and those not followed to the end."""
    seen, frontier = np.unique(drawn), np.unique(drawn)
    links = [np.zeros((0, 2), np.int64)]
    while len(frontier) and len(seen) <= _MOST_GROWTH * len(drawn):
        found = _links_to(workspace, frontier, threshold, notify)
        links.append(found)
        frontier = np.setdiff1d(found[:, 0], seen)
        seen = np.union1d(seen, frontier)
    return seen, np.concatenate(links), frontier


def _links_to(workspace: Workspace, dialogues: Ints, threshold: float, notify: Notify) -> Ints:
    """Every (dialogue, one of the given dialogues) that are near-duplicates."""
    wanted = pa.array(dialogues)
    parts = [batch.filter(pc.is_in(batch["dialogue"], value_set=wanted)) for batch in workspace.dialogues_of()]
    indexed = pa.Table.from_batches(parts)
    index = NearDuplicateIndex(indexed["text"].combine_chunks(), threshold)
    numbers = indexed["dialogue"].to_numpy()
    total, seen = workspace.count("SELECT count(*) FROM dialogues"), 0
    links = [np.zeros((0, 2), np.int64)]
    for batch in workspace.dialogues_of():
        found = index.find(batch["text"], every_link=True).links
        links.append(np.column_stack([batch["dialogue"].to_numpy()[found[:, 0]], numbers[found[:, 1]]]))
        seen += len(batch)
        notify("keeping near-duplicates together", seen / total)
    return np.concatenate(links)


def _components(members: Ints, links: Ints) -> Ints:
    """For each member the number of its component."""
    ends = np.searchsorted(members, links)
    graph = coo_matrix((np.ones(len(ends), np.int8), (ends[:, 0], ends[:, 1])), (len(members), len(members)))
    return np.asarray(csgraph.connected_components(graph, directed=False)[1], np.int64)
