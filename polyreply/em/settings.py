"""Settings of an EM step: the E-step's in `EMSettings`, the M-step's in `OptimizerSettings`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

MLE = "mle"
"""The method of stage 1, which trains a single decoder on everything."""
ADALABEL, DIALOGBERT = "adalabel", "dialogbert"
"""The dialogue models that the paper compares with (`polyreply/baselines`)."""
SINGLE_DECODER = (MLE, ADALABEL, DIALOGBERT)
"""The methods with a single decoder that gets every sample: nothing is scored or assigned."""

Cost = Literal["posterior", "nll"]
"""What a balanced assignment sums: −Q(z|c, r) as in the paper's text, or −log p(r, z|c) as in its authors' code."""


@dataclass(frozen=True)
class EMSettings:
    """The E-step."""

    e_step_size: int = 640
    """N: samples of one EM step, over all processes. K has to divide it where all decoders get equally many. With whole
    contexts a draw may have fewer samples, and decoders' shares then differ by one at most."""
    draw_by: Literal["pairs", "contexts"] = "pairs"
    """What an E-step draws: N pairs at random; or whole contexts with all their responses, up to N pairs, so that the
    responses to one context compete for decoders in the same step."""
    likelihood: Literal["sum", "mean"] = "sum"
    """log p(response|z,c): summed over its tokens as in the paper's text, or averaged as in its authors' code."""
    cost: Cost = "posterior"
    """What a balanced assignment minimises: minus the posterior (the paper's text), or NLL (its authors' code)."""
    e_step_dropout: bool = False
    """Dropout while scoring. It adds noise to every decoder's likelihood, which hides which decoder is best."""
    e_step_scope: Literal["draw", "corpus"] = "draw"
    """Assign each draw of N samples by itself, or a whole epoch at once before it begins."""
    e_step_max_tokens: int | None = None
    """Score only the first tokens of each response; None means all."""
    e_step_candidates: int | None = None
    """With `e_step_max_tokens`: score whole responses under this many decoders, those that explain the beginning best;
    None scores no more than the beginnings."""
    m_step_parts: int = 1
    """Optimizer steps in which a draw is trained on, each on an equal part of every decoder's samples."""
    m_step_passes: int = 1
    """How often a draw is trained on before the next one is scored; the E-step is most of the cost of EM."""
    temperature: float = 1.0
    """eqsoft-em: the weight of the entropy at the start, in the units of the cost. annealed-wta: τ at the start, in
    nats per token."""
    final_temperature: float | None = None
    """eqsoft-em: the weight it falls to; None means that it stays. annealed-wta: τ in the last step before the winner
    takes all; None means a hundredth of `temperature`."""
    anneal_steps: int = 200
    """eqsoft-em, annealed-wta: EM steps until it has fallen."""
    epsilon: float = 0.05
    """relaxed-wta: the weight that the decoders which do not win share."""
    freeze_shared: bool = True
    """Train only what differs between decoders (and the prior)."""
    updates: Literal["together", "in-turn"] = "together"
    """One optimizer step for all decoders, each on its own samples; or K steps, one decoder after the other, as in the
    authors' code for EqHard-EM. It makes a difference only if idle decoders drift (`optimizer.idle`)."""
    usage: Literal["trained", "eval"] = "trained"
    """What `usage` counts: the samples that decoders were trained on; or those that they would get without dropout in
    the E-step, as in the authors' code, which costs another E-step where there is dropout."""

    def problems(self) -> Iterator[str]:
        """Values that an E-step cannot use."""
        if self.e_step_size < 1:
            yield f"e_step_size is {self.e_step_size}; use 1 or more"
        if self.e_step_max_tokens is not None and self.e_step_max_tokens < 1:
            yield f"e_step_max_tokens is {self.e_step_max_tokens}; use 1 or more, or leave it out"
        if self.e_step_candidates is not None and (self.e_step_candidates < 1 or self.e_step_max_tokens is None):
            yield (
                f"e_step_candidates is {self.e_step_candidates} and e_step_max_tokens {self.e_step_max_tokens}; use 1 "
                "or more candidates, found by the beginnings that e_step_max_tokens sets"
            )
        for name in ("m_step_parts", "m_step_passes"):
            if getattr(self, name) < 1:
                yield f"{name} is {getattr(self, name)}; use 1 or more"
        if self.m_step_parts > self.e_step_size:
            yield f"m_step_parts is {self.m_step_parts}; use at most the {self.e_step_size} samples of a draw"
        if min(self.temperature, self.final_temperature or self.temperature) <= 0:
            yield "temperature and final_temperature must be above 0; for a hard assignment use eqhard-em"
        if not 0 <= self.epsilon < 1:
            yield f"epsilon is {self.epsilon}; use a share from 0 to below 1"
        if self.anneal_steps < 1:
            yield f"anneal_steps is {self.anneal_steps}; use 1 or more"

    def temperature_at(self, step: int, method: str) -> float:
        """The temperature of a method at an E-step: it falls by the same factor in each step, then stays."""
        unless_given = self.temperature / 100 if method == "annealed-wta" else self.temperature
        end = unless_given if self.final_temperature is None else self.final_temperature
        if step >= self.anneal_steps:
            return end
        return float(self.temperature * (end / self.temperature) ** (step / self.anneal_steps))


@dataclass(frozen=True)
class OptimizerSettings:
    """The M-step: AdamW, one step for each decoder that has samples."""

    learning_rate: float = 1e-3
    """Of every decoder; adapters on a frozen backbone often learn faster with more, such as 3e-3."""
    relative: bool = False
    """Scale the learning rate of each weight matrix by its root mean square. For a T5 from scratch, whose embeddings
    start twenty times as large as its other weights and would learn too slowly; with a rate such as 0.02."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Adam's decay rates of the gradient's mean and square."""
    idle: Literal["rest", "drift"] = "rest"
    """What a decoder without samples does: it rests, weights and moments unchanged; or drifts on by its momentum, as in
    the authors' code, where one AdamW steps all decoders and those without samples have gradients of zero."""
    loss: Literal["tokens", "samples"] = "tokens"
    """A decoder's loss: the mean NLL per token of its own samples; or, as in the authors' code for Hard- and Soft-EM,
    each sample's NLL per token, averaged over the samples of all decoders."""
    weight_decay: float = 0.0
    """AdamW's decay of weight matrices; biases and the weights of norms do not decay."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """After warm-up: stay, or fall to zero at the last step."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises to its value."""
    clip_norm: float | None = None
    """Largest norm of the gradient of one decoder (and of the shared weights, where they are trained)."""
    batch_rows: int = 64
    """Stage 1: samples of one update, over all processes, of similar lengths."""
    max_tokens: int = 2048
    """Most tokens that pass through the decoders at once; less needs less memory and changes nothing but rounding."""
    max_activations: int = 1 << 27
    """Most numbers that a backward pass keeps of the layers, which bounds the tokens in deep and wide models."""

    def problems(self) -> Iterator[str]:
        """Values that Adam cannot use."""
        if self.learning_rate <= 0:
            yield f"learning_rate is {self.learning_rate}; use a number above 0"
        if not all(0 <= beta < 1 for beta in self.betas):
            yield f"betas are {self.betas}; use numbers from 0 to below 1"
        if self.weight_decay < 0:
            yield f"weight_decay is {self.weight_decay}; use 0 or more"
        if self.clip_norm is not None and self.clip_norm <= 0:
            yield f"clip_norm is {self.clip_norm}; use a number above 0, or leave it out"
        for name, least in (("batch_rows", 1), ("max_tokens", 1), ("max_activations", 1), ("warmup_steps", 0)):
            if getattr(self, name) < least:
                yield f"{name} is {getattr(self, name)}; use {least} or more"
