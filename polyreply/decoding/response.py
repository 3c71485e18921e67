"""What decoding gives, whatever the way."""

from dataclasses import dataclass, field


@dataclass
class Response:
    """The tokens one decoder generated for one context, EOS included if it came, and their log-probability."""

    context: int
    decoder: int
    tokens: list[int] = field(default_factory=list)
    logprob: float = 0.0
