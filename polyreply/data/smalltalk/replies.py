"""The ten reply acts and their phrasings.

A phrasing belongs to one act only. It may use `{doing}` and `{thing}`, which every context has, and `{who}`,
`{place}`, `{when}` and `{often}`, which only some have; it is drawn where the context has all that it uses.
"""

from collections.abc import Mapping

from polyreply.data.smalltalk.replies_cool import ASK, CHANGE, DISAGREE, DOUBT, JOKE
from polyreply.data.smalltalk.replies_warm import ADVISE, AGREE, EXPERIENCE, PRAISE, SYMPATHISE

PHRASINGS: Mapping[str, tuple[str, ...]] = {
    "agree": AGREE,
    "disagree": DISAGREE,
    "ask": ASK,
    "advise": ADVISE,
    "sympathise": SYMPATHISE,
    "experience": EXPERIENCE,
    "joke": JOKE,
    "doubt": DOUBT,
    "praise": PRAISE,
    "change": CHANGE,
}

ACTS: tuple[str, ...] = tuple(PHRASINGS)
