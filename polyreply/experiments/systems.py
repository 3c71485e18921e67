"""The systems that are compared: one preset on one corpus, and the cached tasks that train, reply and score.

All of them share the data and the model of stage 1. Each trains a stage 2 (unless it only decodes the model of stage
1), replies to the final contexts, and is scored. Methods with several learning rates to choose from train with each of
them on the first seed, and take the one with the best validation on the selection half.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache as cached
from functools import partial
from pathlib import Path
from typing import Any, cast

from polyreply.config import as_overrides, load_recipe, to_tree
from polyreply.decoding.generate import GenerationOptions
from polyreply.em.settings import DIALOGBERT, EMSettings
from polyreply.errors import DivergedError, PolyReplyError
from polyreply.experiments.cache import Cache, Task, Work
from polyreply.experiments.presets import Preset, StageSettings
from polyreply.experiments.splits import ExperimentData
from polyreply.experiments.variants import Variant, annealing
from polyreply.files import digest
from polyreply.metrics import Signature, System, evaluate, load_scores
from polyreply.metrics.response_files import join_files, read_responses
from polyreply.metrics.tokenize import CaseName
from polyreply.models.backbones import MiniConfig
from polyreply.models.shipped import SHIPPED, T5_MINI_10, model_folder, shipped_folder
from polyreply.reply_file import Job, reply_to_file
from polyreply.training.interrupts import TrainingError
from polyreply.training.loop import train
from polyreply.training.recipe import MINI, TrainRecipe
from polyreply.training.run_log import read
from polyreply.training.usage import read_usage

RESPONSES, _SCORES = "responses.jsonl", "scores.json"
_CASE: CaseName = "lower"
_SAMPLING = ("nucleus", "top-k", "min-p", "mbr")
"""Ways to decode that draw random numbers."""
_RELATIVE_COST = {"soft-em": 3.5, "eqsoft-em": 3.5, "relaxed-wta": 3.5, "annealed-wta": 3.5}
"""How much longer an EM step takes if every decoder learns from every sample; less, the colder EqSoft-EM is."""
_BALANCED = ("eqhard-em", "eqsoft-em")
"""Methods that depend on the cost of an assignment; the others ignore it."""
_SEVERAL_REFERENCES = 1.5
"""Mean references per context from which on several responses to a context were collected."""
_MINI_WEIGHTS, _T5_SMALL_WEIGHTS = 4.1e6, 60e6


class Systems:
    """The tasks of all systems under a preset, on one corpus."""

    def __init__(
        self,
        cache: Cache,
        preset: Preset,
        data: ExperimentData,
        *,
        is_plan: bool = False,
        rate_seed: int | None = None,
    ) -> None:
        """`is_plan`: compute nothing; a learning rate that is not chosen yet is the first of its list.

        `rate_seed`: the seed by which learning rates are chosen, by default the first of the preset's.
        """
        self.cache, self.preset, self.data, self._is_plan = cache, preset, data, is_plan
        self._rate_seed = preset.seeds[0] if rate_seed is None else rate_seed

    @property
    def num_decoders(self) -> int:
        """K of the preset."""
        return self.preset.model.num_decoders

    def with_seeds(self, seeds: tuple[int, ...]) -> "Systems":
        """The same systems with other seeds of stage 2, and the learning rates they had."""
        preset = replace(self.preset, seeds=seeds)
        return Systems(self.cache, preset, self.data, is_plan=self._is_plan, rate_seed=self._rate_seed)

    def on_selection(self) -> "Systems":
        """The same systems on the contexts of the selection half in place of the final ones."""
        data = replace(self.data, final=self.data.selection)
        return Systems(self.cache, self.preset, data, is_plan=self._is_plan, rate_seed=self._rate_seed)

    def paper_dataset(self) -> str:
        """The dataset of the paper to compare with: `weibo` (several references per context) or `opensubtitles`."""
        if self.preset.paper_dataset != "auto":
            return self.preset.paper_dataset
        self.cache.get(self.data.final)
        has_several = self.data.about()["references"] >= _SEVERAL_REFERENCES
        return "weibo" if has_several or self.data.language == "zh" else "opensubtitles"

    def origin(self, seeds: Sequence[int] | None = None) -> dict[str, Any]:
        """Where final numbers come from: data, split and seeds (by default the preset's)."""
        self.cache.get(self.data.final)
        about, data = self.data.about(), self.data
        split = "test" if about["final_split"] == "test" else "the half of valid by which nothing was chosen"
        if data.final.name == data.selection.name:
            split = "the half of valid by which choices are made"
        merged = f"; {about['merged']} rows were merged with others of the same context" if about["merged"] else ""
        contexts = f"{about['contexts']} contexts, {about['references']:.1f} references each"
        return {
            "data": data.name,
            "preparation": data.preparation,
            "final_split": about["final_split"],
            "final_numbers_from": f"{split}, {contexts}{merged}",
            "seeds": list(self.preset.seeds if seeds is None else seeds),
        }

    def limits(self) -> GenerationOptions:
        """How long replies may be and must be, and what they must not repeat; the same for every system."""
        preset = self.preset
        return {
            "max_new_tokens": preset.max_new_tokens,
            "min_new_tokens": preset.min_new_tokens,
            "no_repeat_ngram_size": preset.no_repeat_ngram_size,
        }

    def seeds(self, variant: Variant) -> tuple[int, ...]:
        """The seeds of a variant: just one if nothing about it is random but stage 1, which all share."""
        return self.preset.seeds if variant.is_trained or variant.decode in _SAMPLING else (0,)

    def distinct(self, variants: Iterable[Variant]) -> list[Variant]:
        """The variants without those that the preset makes equal to an earlier one."""
        first: dict[str, Variant] = {}
        for variant in variants:
            first.setdefault(self.responses(variant).name, variant)
        return list(first.values())

    # Training

    def stage_1(self) -> Task:
        """The training of the single-decoder model, which every variant starts from."""
        model, stage = self.preset.model, self.preset.stage_1
        settings = {
            **self._settings(stage),
            "method": "mle",
            "model.mini": to_tree(model.mini),
            "model.vocab_size": model.vocab_size,
            "model.tokenizer": model.tokenizer,
        }
        work = self.work("stage 1", stage.steps * stage.optimizer.batch_rows)
        splits = self.data.splits
        return training_task(self.cache, "stage1", splits.path, model.backbone, settings, needs=[splits], work=work)

    def training(self, variant: Variant, seed: int = 0) -> Task:
        """The training of a variant with the learning rate that was chosen for it."""
        if not variant.is_trained:
            return self.stage_1()
        task = self._own_training(variant, seed, self.learning_rate(variant))
        trials = self.trials(variant)
        others = tuple(trial for trial in trials if trial.name != task.name)
        is_provisional = self._is_plan and not _all_done(trials)
        return replace(task, trials=others, is_provisional=is_provisional, is_trial=len(others) < len(trials))

    def rates(self, variant: Variant) -> tuple[float, ...]:
        """The learning rates to choose from: those of adapters, of full decoders, or of the method."""
        if not variant.is_trained_by_em:
            rates: tuple[float, ...] = getattr(self.preset.rates, variant.method)
            return rates
        return self.preset.rates.decoders if self._has_full_decoders(variant) else self.preset.rates.adapters

    def trials(self, variant: Variant) -> list[Task]:
        """The trainings by which its learning rate is chosen; none if there is no choice."""
        if variant.rate_of:
            return self.trials(variant.rate_of)
        rates, choice = self.rates(variant), self.preset.rates
        if not variant.is_trained or choice.select == "first" or len(rates) == 1:
            return []
        return [self._own_training(variant, self._rate_seed, rate, choice.trial_steps) for rate in rates]

    def learning_rate(self, variant: Variant) -> float:
        """The rate with the best validation on the first seed, or the first where there is no choice."""
        if variant.rate_of:
            return self.learning_rate(variant.rate_of)
        rates, trials = self.rates(variant), self.trials(variant)
        if not trials or (self._is_plan and not _all_done(trials)):
            return rates[0]
        losses = [self._selection_loss(trial) for trial in trials]
        return rates[losses.index(min(losses))]

    def _selection_loss(self, trial: Task) -> float:
        """The number by which learning rates are chosen, lower being better; infinite for a diverged training."""
        number = self.preset.rates.select
        try:
            run = self.cache.get(trial)
        except DivergedError:
            return math.inf
        validations = [line for line in read(run / "log.jsonl") if line["kind"] == "validation"]
        value = validations[-1]["metrics"].get(number) if validations else None
        if value is None:
            raise PolyReplyError(
                f"{run}: expected {number} in its validations, to choose a learning rate by, found none; set "
                "stage_2.validation.contexts above 0, or rates.select=mixture_nll"
            )
        return float(value) if number == "mixture_nll" else -float(value)

    def diverged(self, variants: Iterable[Variant]) -> dict[str, str]:
        """The variants with a seed whose training diverged, with a message; runs all their trainings."""
        messages = {}
        for variant in variants:
            for seed in self.seeds(variant):
                task = self.training(variant, seed)
                try:
                    self.cache.get(task)
                except DivergedError:
                    messages[variant.name] = f"{variant.name}, seed {seed}: {task.diverged}"
                    break
        return messages

    def trained(self, variants: Iterable[Variant]) -> tuple[list[Variant], list[str]]:
        """The variants whose trainings did not diverge, and a message for each other; raises if all diverged."""
        variants = list(variants)
        diverged = self.diverged(variants)
        if len(diverged) == len(variants):
            raise DivergedError(f"{next(iter(diverged.values()))}, and so did all others; use a lower learning rate")
        return [variant for variant in variants if variant.name not in diverged], list(diverged.values())

    def usage(self, variant: Variant, seed: int = 0) -> dict[str, Any]:
        """What its decoders were trained on."""
        return read_usage(self.cache.get(self.training(variant, seed)) / "usage.json")

    def training_minutes(self, variant: Variant) -> float:
        """The time of its training, the mean over seeds, with that of stage 1 if it starts from its model."""
        tasks = [self.training(variant, seed) for seed in self.seeds(variant)]
        minutes = sum(task.seconds for task in tasks) / len(tasks) / 60
        return minutes + (self.stage_1().seconds / 60 if variant.is_trained_by_em else 0.0)

    def _own_training(self, variant: Variant, seed: int, rate: float, em_steps: int | None = None) -> Task:
        """Its stage 2, or the training of a method of its own; with the part of it that so many EM steps are."""
        if variant.is_trained_by_em:
            return self._stage_2(variant, seed, rate, em_steps)
        preset, method = self.preset, variant.method
        stage: StageSettings = getattr(preset, method)
        steps = max(1, round(stage.steps * (em_steps or preset.stage_2.steps) / preset.stage_2.steps))
        settings: dict[str, Any] = {
            **self._settings(stage),
            "model.mini": to_tree(preset.model.mini),
            "model.vocab_size": preset.model.vocab_size,
            "model.tokenizer": preset.model.tokenizer,
            "method": method,
            "seed": seed,
            "optimizer.learning_rate": rate,
            **variant.settings,
            "steps": steps,
        }
        backbone = preset.model.backbone
        if method == DIALOGBERT:
            settings |= {"model.mini": to_tree(preset.dialogbert_sizes), "model.tokenizer": None}
            backbone = preset.utterance_encoder
        splits, work = self.data.splits, self.work(method, steps * stage.optimizer.batch_rows)
        return training_task(self.cache, method, splits.path, backbone, settings, needs=[splits], work=work)

    def _stage_2(self, variant: Variant, seed: int, rate: float, steps: int | None = None) -> Task:
        """The training of a variant with a learning rate; by default for the variant's or the preset's steps."""
        stage_1, preset = self.stage_1(), self.preset
        steps = steps or int(variant.settings.get("steps", preset.stage_2.steps))
        settings = {
            **self._settings(preset.stage_2),
            "model": {**to_tree(preset.model), "tokenizer": None},
            "em": to_tree(preset.em),
            "method": variant.method,
            "seed": seed,
            "optimizer.learning_rate": rate,
            **(annealing(preset.em, steps) if variant.method == "eqsoft-em" else {}),
            **({"em.anneal_steps": max(1, steps // 2)} if variant.method == "annealed-wta" else {}),
            **variant.settings,
            **({} if variant.method in _BALANCED else {"em.cost": EMSettings().cost}),
            "steps": steps,
        }
        samples = steps * int(settings.get("em.e_step_size", preset.em.e_step_size))
        cost = _RELATIVE_COST.get(variant.method, 1)
        work = self.work("EM", samples * self._replies_per_context(variant) * cost, variant)
        splits, backbone = self.data.splits.path, stage_1.path / "model"
        return training_task(self.cache, variant.method, splits, backbone, settings, needs=[stage_1], work=work)

    def _settings(self, stage: StageSettings) -> dict[str, Any]:
        """The settings of a recipe that both stages take from the preset."""
        return {
            "steps": stage.steps,
            "context": to_tree(self.preset.context),
            "optimizer": to_tree(stage.optimizer),
            "validation": {**to_tree(stage.validation), "tokenizer": self.data.tokenizer},
            "checkpoint": to_tree(stage.checkpoint),
        }

    def _has_full_decoders(self, variant: Variant) -> bool:
        architecture = variant.settings.get("model.architecture", self.preset.model.architecture)
        return variant.is_trained_by_em and architecture == "multi-decoder"

    # Replies and scores

    def responses(self, variant: Variant, seed: int = 0) -> Task:
        """Its replies to the final contexts."""
        model, k = self.training(variant, seed), self._replies_per_context(variant)
        options: dict[str, Any] = {"decode": variant.decode, "seed": seed, **self.limits(), **variant.options}
        if variant.decode != "decoders":
            options["k"] = k
        inputs = {"model": model.name, "data": self.data.final.name, **options}
        inputs["batch_size"] = self.preset.reply_batch  # random numbers are drawn for each batch
        work = self.work(f"replies by {variant.decode}", self.preset.contexts * k, variant)
        compute = partial(self._reply, model, options)
        detail = f"{variant.method}-{variant.decode}"
        return self.cache.task("responses", detail, inputs, compute, [model, self.data.final], work)

    def scores(self, variant: Variant, seed: int = 0) -> Task:
        """The scores of its replies."""
        responses, k = self.responses(variant, seed), self._replies_per_context(variant)
        signature = Signature(self.data.tokenizer, _CASE, str(k), self.data.final.name)
        inputs = {"responses": responses.name, "signature": str(signature)}
        work = Work("scores", self.preset.contexts * k)
        detail, compute = f"{variant.method}-{variant.decode}", partial(self._score, responses)
        return self.cache.task("scores", detail, inputs, compute, [responses], work)

    def all_scores(self, variants: Iterable[Variant]) -> list[Task]:
        """The scores of all seeds of some variants."""
        return [self.scores(variant, seed) for variant in variants for seed in self.seeds(variant)]

    def scored(self, variant: Variant) -> System:
        """The scores of all its seeds, computed where they are missing."""
        paths = [self.cache.get(self.scores(variant, seed)) for seed in self.seeds(variant)]
        return System(variant.name, [load_scores(path / _SCORES) for path in paths])

    def replies(self, variant: Variant, seed: int = 0) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
        """The final contexts, each with its replies."""
        path = self.cache.get(self.responses(variant, seed)) / RESPONSES
        return [(row.context, row.texts) for row in read_responses(path)]

    def _replies_per_context(self, variant: Variant) -> int:
        return int(variant.k or variant.settings.get("model.num_decoders", self.num_decoders))

    def _reply(self, model: Task, options: Mapping[str, Any], out: Path) -> None:
        from polyreply.reply import PolyReply, ReplyOptions

        output = out / RESPONSES
        if output.is_file():  # interrupted after the last reply, and before the task was recorded as done
            return
        job = Job(self.data.final_file, output, cast(ReplyOptions, dict(options)), batch_size=self.preset.reply_batch)
        loaded = PolyReply.from_pretrained(model.path / "model").to("auto")
        reply_to_file(loaded, job, model_name=model.name, notify=self.cache.notify)

    def _score(self, responses: Task, out: Path) -> None:
        joined = join_files(responses.path / RESPONSES, self.data.final_file)
        scores = evaluate(joined.responses, joined.references, tokenizer=self.data.tokenizer, case=_CASE)
        scores.save(out / _SCORES, overwrite=True)

    def work(self, unit: str, amount: float, variant: Variant | None = None) -> Work:
        """An amount of work; paces are measured separately for each size of model, and for full decoders."""
        model = self.preset.model
        size = f"{model.mini.d_model}x{model.mini.num_decoder_layers}" if model.backbone == MINI else ""
        full = "full decoders" if variant and self._has_full_decoders(variant) else ""
        unit = " ".join(part for part in (f"{unit},", model.backbone, size, full) if part)
        is_small = model.backbone in (MINI, SHIPPED)
        relative = relative_size(model.mini, model.vocab_size) if is_small else _T5_SMALL_WEIGHTS / _MINI_WEIGHTS
        return Work(unit, amount, relative)


def training_task(
    cache: Cache,
    detail: str,
    data: Path,
    backbone: str | Path,
    settings: Mapping[str, Any],
    *,
    needs: Sequence[Task] = (),
    work: Work | None = None,
) -> Task:
    """The task whose result is the run folder of a training; the settings are those of a recipe, by dotted names."""
    recipe = _recipe(tuple(as_overrides({**settings, "data": data, "out": "run", "model.backbone": backbone})))
    inputs = {**to_tree(recipe), "data": data.name, "out": ""}
    inputs["model"] = {**inputs["model"], "backbone": str(backbone).removeprefix(f"{cache.folder}/")}
    inputs["weights"] = _weights_digest(cache, backbone)
    return cache.task("training", detail, inputs, partial(_train, cache, recipe), needs, work, scratch="checkpoints")


def _train(cache: Cache, recipe: TrainRecipe, out: Path) -> None:
    """Train into a folder, or continue there. An EM training that diverges raises DivergedError."""
    recipe = replace(recipe, out=str(out))
    try:
        train(recipe, resume=(out / "recipe.yaml").is_file(), callbacks=cache.callbacks)
    except (TrainingError, DivergedError) as error:
        if recipe.method != "mle" and isinstance(error, DivergedError):
            raise DivergedError(f"{out.name} diverged: {str(error).partition(';')[0]}") from error
        raise TrainingError(f"{error}; finished work is kept, run the same command again to continue") from error


def _weights_digest(cache: Cache, backbone: str | Path) -> str:
    """A digest of a backbone on this disk; none is needed for one of this cache, which is known by its name."""
    folder = shipped_folder(T5_MINI_10) if backbone == SHIPPED else Path(model_folder(backbone))
    if backbone == MINI or folder.is_relative_to(cache.folder) or not folder.is_dir():
        return ""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return _digest_of_all(tuple((path, path.stat().st_mtime_ns) for path in files))


@cached
def _digest_of_all(files: tuple[tuple[Path, int], ...]) -> str:
    """A digest of files; the time of each one's last change makes it safe to remember."""
    text = json.dumps([(path.name, digest(path)) for path, _ in files])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cached
def _recipe(overrides: tuple[str, ...]) -> TrainRecipe:
    """A checked recipe; remembered, because checking takes a moment and a plan asks for the same ones repeatedly."""
    return load_recipe(TrainRecipe, None, overrides)


def _all_done(tasks: Iterable[Task]) -> bool:
    return all(task.is_done for task in tasks)


def relative_size(mini: MiniConfig, vocab_size: int) -> float:
    """The weights of a small T5 that a token passes through, relative to the model of preset `mini`."""
    attention = 4 * mini.d_model * mini.num_heads * mini.d_kv
    feed_forward = 2 * mini.d_model * mini.d_ff
    encoder = mini.num_layers * (attention + feed_forward)
    decoder = mini.num_decoder_layers * (2 * attention + feed_forward)
    return max(0.1, (encoder + decoder + mini.d_model * vocab_size) / _MINI_WEIGHTS)
