"""smalltalk: everyday English dialogue made from templates, with a known reply act behind every response.

What a person does, plans or keeps at is answered in one of ten ways: with agreement, an objection, a question, advice,
sympathy, a story, a joke, doubt, praise or a change of subject. The act is drawn uniformly and independently of the
context, and every act suits every context, so there are always several right replies. A model with K decoders has found
the modes of this corpus when its decoders differ in the acts that `label` finds in their replies.

`valid` and `test` use context templates and slot values that `train` does not have; the phrasings of the replies are
the same in all splits. Nothing is downloaded.
"""

from polyreply.data.smalltalk.content import ACTS
from polyreply.data.smalltalk.generate import generate
from polyreply.data.smalltalk.label import label

__all__ = ["ACTS", "generate", "label"]
