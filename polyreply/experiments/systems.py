"""The lab: what experiments share. One data folder, one stage 1, and trainings, responses and scores that are kept."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from polyreply.config import to_tree
from polyreply.decoding.generate import Decode
from polyreply.em.settings import EMSettings
from polyreply.errors import PolyReplyError
from polyreply.experiments.cache import Diverged, Workshop
from polyreply.experiments.cooling import cooling
from polyreply.experiments.corpus import Corpus
from polyreply.experiments.presets import Preset, StageSettings
from polyreply.experiments.stage import Stage, Work, revision
from polyreply.metrics import evaluate, load_scores
from polyreply.metrics.comparison import System
from polyreply.metrics.response_files import join_files, read_responses
from polyreply.metrics.scores import Signature
from polyreply.metrics.tokenize import CaseName
from polyreply.reply_file import Job, reply_to_file
from polyreply.training.recipe import MINI
from polyreply.training.run_log import read
from polyreply.training.usage import read_usage

_RESPONSES, _SCORES = "responses.jsonl", "scores.json"
_CASE: CaseName = "lower"
_RANDOM = ("nucleus", "mbr")
"""Ways to decode that draw."""
_LIMITS = ("max_new_tokens", "min_new_tokens", "no_repeat_ngram_size")
"""Settings of the preset that say how every system replies."""
_DEAR = {"soft-em": 3.5, "eqsoft-em": 3.5}
"""How much longer a step takes where every decoder learns from every sample; the cooler EqSoft-EM is, the less."""
_BALANCED = ("eqhard-em", "eqsoft-em")
"""Methods that look at the cost of an assignment: for the others it is no reason to train anew."""
_SEVERAL_REFERENCES = 1.5
"""How many a context has on average where several responses to it were collected."""


@dataclass(frozen=True)
class Variant:
    """A system of the tables: how it is trained, and how it replies."""

    name: str
    """As the paper calls it, where the paper has it."""
    method: str = "mle"
    """`mle` for stage 1 itself."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What it changes of the preset's recipe of stage 2, by dotted names."""
    decode: Decode = "decoders"
    k: int | None = None
    """Replies to a context; None: one of each decoder, or as many as the preset has decoders."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What it changes of how the preset has systems reply, such as `min_new_tokens`."""
    rate_of: "Variant | None" = None
    """The variant whose learning rate it takes; None: it has a choice of its own."""

    @property
    def is_trained_by_em(self) -> bool:
        """Whether it has a stage 2."""
        return self.method != "mle"


class Lab:
    """A preset at work on a corpus, in a workshop."""

    def __init__(
        self,
        workshop: Workshop,
        preset: Preset,
        corpus: Corpus,
        *,
        is_plan: bool = False,
        rate_seed: int | None = None,
    ) -> None:
        """`is_plan`: only say what would be done; a learning rate that is not chosen yet is then the first.

        `rate_seed`: the seed by which learning rates are chosen, the first of the preset's unless named.
        """
        self.workshop, self.preset, self.corpus, self._is_plan = workshop, preset, corpus, is_plan
        self._rate_seed = preset.seeds[0] if rate_seed is None else rate_seed

    @property
    def num_decoders(self) -> int:
        """K of the preset."""
        return self.preset.model.num_decoders

    def paper_dataset(self) -> str:
        """Which dataset of the paper this one stands in for: `weibo` (explicit one-to-many) or `opensubtitles`."""
        if self.preset.paper_dataset != "auto":
            return self.preset.paper_dataset
        self.workshop.make(self.corpus.asked)
        is_explicit = self.corpus.about()["references"] >= _SEVERAL_REFERENCES
        return "weibo" if is_explicit or self.corpus.language == "zh" else "opensubtitles"

    def origin(self, seeds: Sequence[int] | None = None) -> dict[str, Any]:
        """Where final numbers come from: data, split and seeds (of the preset, unless named)."""
        self.workshop.make(self.corpus.asked)
        about, corpus = self.corpus.about(), self.corpus
        split = "test" if about["final_split"] == "test" else "the half of valid that nothing was chosen by"
        if corpus.asked.name == corpus.for_choices.name:
            split = "the half of valid that choices are made by"
        merged = f"; {about['merged']} rows were merged into others of the same context" if about["merged"] else ""
        return {
            "data": corpus.name,
            "preparation": corpus.preparation,
            "final_split": about["final_split"],
            "final_numbers_from": (
                f"{split}, {about['contexts']} contexts, {about['references']:.1f} references each{merged}"
            ),
            "seeds": list(self.preset.seeds if seeds is None else seeds),
        }

    def with_seeds(self, seeds: tuple[int, ...]) -> "Lab":
        """The same lab with other seeds of stage 2, and the learning rates it had."""
        return self._changed(replace(self.preset, seeds=seeds), self.corpus)

    def limits(self) -> dict[str, int]:
        """How long replies may be and must be, and what they must not repeat: for every system alike."""
        return {name: getattr(self.preset, name) for name in _LIMITS}

    def on_choices(self) -> "Lab":
        """The same lab, with the contexts that choices are made by in the place of the final ones."""
        return self._changed(self.preset, replace(self.corpus, asked=self.corpus.for_choices))

    def _changed(self, preset: Preset, corpus: Corpus) -> "Lab":
        return Lab(self.workshop, preset, corpus, is_plan=self._is_plan, rate_seed=self._rate_seed)

    def seeds(self, variant: Variant) -> tuple[int, ...]:
        """The seeds a variant has: one, where nothing is random but stage 1, which all share."""
        return self.preset.seeds if variant.is_trained_by_em or variant.decode in _RANDOM else (0,)

    def stage_1(self) -> Stage:
        """The training of the single-decoder model, which all variants begin with."""
        model = self.preset.model
        settings = {
            **self._settings(self.preset.stage_1),
            "method": "mle",
            "model.mini": to_tree(model.mini),
            "model.vocab_size": model.vocab_size,
            "model.tokenizer": model.tokenizer,
        }
        work = self.work("stage 1", self.preset.stage_1.steps * self.preset.stage_1.optimizer.batch_rows)
        return self.workshop.training(
            "stage1",
            self.corpus.splits.path,
            model.backbone,
            settings,
            needs=[self.corpus.splits],
            work=work,
        )

    def training(self, variant: Variant, seed: int = 0) -> Stage:
        """The training of a variant, with the learning rate it is to have."""
        if not variant.is_trained_by_em:
            return self.stage_1()
        found = self._training(variant, seed, self.learning_rate(variant))
        tried = self.tried(variant)
        choices = tuple(stage for stage in tried if stage.name != found.name)
        waits = self._is_plan and not _are_made(tried)
        return replace(found, choices=choices, is_provisional=waits, is_trial=len(choices) < len(tried))

    def learning_rate(self, variant: Variant) -> float:
        """The first of its family's, or the one with the best validation on the first seed."""
        if variant.rate_of:
            return self.learning_rate(variant.rate_of)
        rates, tried = self.rates(variant), self.tried(variant)
        if not tried or (self._is_plan and not _are_made(tried)):
            return rates[0]
        found = [self._cost(stage) for stage in tried]
        return rates[found.index(min(found))]

    def _cost(self, trained: Stage) -> float:
        """What learning rates are chosen by, less being better; a rate with which training diverged is the worst."""
        select = self.preset.rates.select
        try:
            value = _last_validation(self.workshop.make(trained), select)
        except Diverged:
            return math.inf
        return value if select == "mixture_nll" else -value

    def diverged(self, variants: Iterable[Variant]) -> dict[str, str]:
        """The variants that have a seed whose training diverged, with what happened; makes all their trainings."""
        found = {}
        for variant in variants:
            for seed in self.seeds(variant):
                trained = self.training(variant, seed)
                try:
                    self.workshop.make(trained)
                except Diverged:
                    found[variant.name] = f"{variant.name}, seed {seed}: {trained.diverged}"
                    break
        return found

    def trained(self, variants: Iterable[Variant]) -> tuple[list[Variant], list[str]]:
        """The variants whose trainings did not diverge, and what became of the others; raises if all did."""
        variants = list(variants)
        diverged = self.diverged(variants)
        found = [variant for variant in variants if variant.name not in diverged]
        if not found:
            raise Diverged(f"{next(iter(diverged.values()))}, and so did all others; use a lower learning rate")
        return found, list(diverged.values())

    def tried(self, variant: Variant) -> list[Stage]:
        """The trainings by which its learning rate is chosen; none if there is no choice."""
        if variant.rate_of:
            return self.tried(variant.rate_of)
        rates = self.rates(variant)
        if not variant.is_trained_by_em or self.preset.rates.select == "first" or len(rates) == 1:
            return []
        return [self._training(variant, self._rate_seed, rate, self.preset.rates.trial_steps) for rate in rates]

    def responses(self, variant: Variant, seed: int = 0) -> Stage:
        """Its replies to the final contexts."""
        trained, k = self.training(variant, seed), self._k(variant)
        options: dict[str, Any] = {"decode": variant.decode, "seed": seed, **self.limits(), **variant.options}
        if variant.decode != "decoders":
            options["k"] = k
        batch = {"batch_size": self.preset.reply_batch}  # random numbers are drawn for each batch
        made_from = {"model": trained.name, "data": self.corpus.asked.name, **options, **batch, **revision("responses")}
        work = self.work(f"replies by {variant.decode}", self.preset.contexts * k, variant)
        return self.workshop.planned(
            f"responses-{variant.method}-{variant.decode}",
            made_from,
            lambda path: self._reply(trained, path, options),
            [trained, self.corpus.asked],
            work,
        )

    def scores(self, variant: Variant, seed: int = 0) -> Stage:
        """What its replies are worth."""
        said = self.responses(variant, seed)
        signature = Signature(self.corpus.tokenizer, _CASE, str(self._k(variant)), self.corpus.asked.name)
        made_from = {"responses": said.name, "signature": str(signature), **revision("scores")}
        kind, work = (
            f"scores-{variant.method}-{variant.decode}",
            Work("scores", self.preset.contexts * self._k(variant)),
        )
        return self.workshop.planned(kind, made_from, lambda path: self._score(said, path), [said], work)

    def all_scores(self, variants: Sequence[Variant]) -> list[Stage]:
        """The last stages that `scored` of these variants asks for."""
        return [self.scores(variant, seed) for variant in variants for seed in self.seeds(variant)]

    def scored(self, variant: Variant) -> System:
        """Its scores for all its seeds, made where they are missing."""
        paths = [self.workshop.make(self.scores(variant, seed)) for seed in self.seeds(variant)]
        return System(variant.name, [load_scores(path / _SCORES) for path in paths])

    def said(self, variant: Variant, seed: int = 0) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
        """Its replies to each of the final contexts, with the context."""
        path = self.workshop.make(self.responses(variant, seed)) / _RESPONSES
        return [(row.context, row.texts) for row in read_responses(path)]

    def usage(self, variant: Variant, seed: int = 0) -> dict[str, Any]:
        """What its decoders were trained on."""
        return read_usage(self.workshop.make(self.training(variant, seed)) / "usage.json")

    def model_folder(self, variant: Variant, seed: int = 0) -> Path:
        """Its trained model."""
        return self.workshop.make(self.training(variant, seed)) / "model"

    def _k(self, variant: Variant) -> int:
        return int(variant.k or variant.settings.get("model.num_decoders", self.num_decoders))

    def rates(self, variant: Variant) -> tuple[float, ...]:
        """The learning rates that its family has."""
        return self.preset.rates.decoders if self._has_full_decoders(variant) else self.preset.rates.adapters

    def _has_full_decoders(self, variant: Variant) -> bool:
        own = variant.settings.get("model.architecture", self.preset.model.architecture)
        return variant.is_trained_by_em and own == "multi-decoder"

    def _training(self, variant: Variant, seed: int, rate: float, steps: int | None = None) -> Stage:
        """`steps`: other than the variant's or the preset's."""
        first, preset = self.stage_1(), self.preset
        stage_2 = replace(preset.stage_2, steps=steps or variant.settings.get("steps", preset.stage_2.steps))
        own = {
            "model": {**to_tree(preset.model), "tokenizer": None},
            "em": to_tree(preset.em),
            "method": variant.method,
            "seed": seed,
            "optimizer.learning_rate": rate,
            **(cooling(preset.em, stage_2.steps) if variant.method == "eqsoft-em" else {}),
            **variant.settings,
            **({} if variant.method in _BALANCED else {"em.cost": EMSettings().cost}),
        }
        size = int(own.get("em.e_step_size", preset.em.e_step_size))
        return self.workshop.training(
            variant.method,
            self.corpus.splits.path,
            first.path / "model",
            {**self._settings(stage_2), **own, "steps": stage_2.steps},
            needs=[first],
            work=self.work("EM", stage_2.steps * size * self._k(variant) * _DEAR.get(variant.method, 1), variant),
        )

    def _settings(self, stage: StageSettings) -> dict[str, Any]:
        """What both stages are told by the preset."""
        return {
            "steps": stage.steps,
            "context": to_tree(self.preset.context),
            "optimizer": to_tree(stage.optimizer),
            "validation": {**to_tree(stage.validation), "tokenizer": self.corpus.tokenizer},
            "checkpoint": to_tree(stage.checkpoint),
        }

    def work(self, unit: str, amount: float, variant: Variant | None = None) -> Work:
        """Paces are measured for each size of model by itself, and for full decoders by themselves."""
        model = self.preset.model
        size = f"{model.mini.d_model}x{model.mini.num_decoder_layers}" if model.backbone == MINI else ""
        full = "full decoders" if variant and self._has_full_decoders(variant) else ""
        return Work(" ".join(part for part in (f"{unit},", model.backbone, size, full) if part), amount)

    def _reply(self, trained: Stage, path: Path, options: Mapping[str, Any]) -> None:
        from polyreply.reply import PolyReply

        output = path / _RESPONSES
        if output.is_file():  # all replies were there, and only the last word was missing
            return
        job = Job(self.corpus.final, output, dict(options), batch_size=self.preset.reply_batch)
        model = PolyReply.from_pretrained(trained.path / "model").to("auto")
        reply_to_file(model, job, model_name=trained.name, notify=self.workshop.notify)

    def _score(self, said: Stage, path: Path) -> None:
        joined = join_files(said.path / _RESPONSES, self.corpus.final)
        scores = evaluate(joined.responses, joined.references, tokenizer=self.corpus.tokenizer, case=_CASE)
        scores.save(path / _SCORES, overwrite=True)


def _are_made(stages: Iterable[Stage]) -> bool:
    return all(stage.is_made for stage in stages)


def _last_validation(run: Path, number: str) -> float:
    """A number of a run's last validation, which saw the half of valid that is there for choices."""
    found = [line for line in read(run / "log.jsonl") if line["kind"] == "validation"]
    value = found[-1]["metrics"].get(number) if found else None
    if value is None:
        raise PolyReplyError(
            f"{run}: expected {number} in its validations, to choose a learning rate by, found none; set "
            "stage_2.validation.contexts above 0, or rates.select=mixture_nll"
        )
    return float(value)
