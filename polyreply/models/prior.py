"""p(z|c): how likely each decoder is for a context, before any response is seen."""

import torch
from torch import Tensor, nn


class LearnedPrior(nn.Module):
    """A network from the mean-pooled states of the context to log p(z|c)."""

    def __init__(self, model_size: int, num_decoders: int) -> None:
        super().__init__()
        self.inner = nn.Linear(model_size, model_size)
        self.outer = nn.Linear(model_size, num_decoders)

    def forward(self, pooled_BD: Tensor) -> Tensor:
        """Log-probabilities (B, K), in float32."""
        scores_BK = self.outer(torch.tanh(self.inner(pooled_BD)))
        return torch.log_softmax(scores_BK.float(), -1)


def mean_pool(states_BSD: Tensor, mask_BS: Tensor) -> Tensor:
    """The mean state over the real tokens of each context."""
    weights_BS1 = mask_BS.unsqueeze(-1).to(states_BSD.dtype)
    return (states_BSD * weights_BS1).sum(1) / weights_BS1.sum(1).clamp(min=1)
