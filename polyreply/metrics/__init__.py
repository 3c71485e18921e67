"""Numbers for K responses to a context, each with a signature: BLEU-P/R/F, Dist-n, Pairwise-BLEU and more.

```python
from polyreply.metrics import evaluate

scores = evaluate([["good morning", "hello there"]], [["good morning to you", "hello"]])
print(scores["bleu2_f"], scores["pairwise_bleu"], scores.signature)
```
"""

from polyreply.metrics.evaluation import evaluate
from polyreply.metrics.score_file import load_scores
from polyreply.metrics.scores import PAPER_NUMBERS, Scores
from polyreply.metrics.signature import Signature

__all__ = ["PAPER_NUMBERS", "Scores", "Signature", "evaluate", "load_scores"]
