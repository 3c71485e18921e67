"""Scores for K responses to a context, each with a signature: BLEU-P/R/F, Dist-n, Pairwise-BLEU and more.

```python
from polyreply import compare, evaluate

scores = evaluate([["good morning", "hello there"]], [["good morning to you", "hello"]], system="ours")
print(scores["bleu2_f"], scores.signature)
print(compare(scores, "beam.json"))
```

`metric` registers a metric from outside the package.
"""

from polyreply.metrics.comparison import Comparison, System, compare
from polyreply.metrics.evaluation import evaluate
from polyreply.metrics.registry import PAPER_NUMBERS, metric
from polyreply.metrics.scores import Scores, Signature, load_scores

__all__ = [
    "PAPER_NUMBERS",
    "Comparison",
    "Scores",
    "Signature",
    "System",
    "compare",
    "evaluate",
    "load_scores",
    "metric",
]
