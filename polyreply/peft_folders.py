"""PEFT's folders: K decoders written as K ordinary LoRAs, and K LoRAs read as one K-decoder model.

A decoder's LoRA in PEFT's layout is a folder with `adapter_config.json` and `adapter_model.safetensors`. Our weights
are stacked over decoders, (K, in, r) and (K, r, out); PEFT has (r, in) and (out, r) for each linear layer. The names of
the layers are the backbone's own, so nothing else changes.

`adapt: everything` is PEFT's plain LoRA. `adapt: response` in a decoder-only model is its activated LoRA, which acts
from the last occurrence of `alora_invocation_tokens` on. That is the same only if those tokens cannot occur in a
response, so it is refused otherwise. In an encoder-decoder model `response` is a plain LoRA on the decoder alone.
"""

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from polyreply.data.context_format import can_occur_in_response, invocation_tokens
from polyreply.errors import BackboneError, MissingExtraError, PolyReplyError
from polyreply.files import check_new_folder, new_folder
from polyreply.models.adapters import LoraAdapter, adapted_stacks, linear_sizes, lora_sites
from polyreply.models.backbones import load_backbone, quietly
from polyreply.models.families import family_of
from polyreply.models.gguf_file import ordinary_name
from polyreply.models.settings import LoraSettings
from polyreply.reply import PolyReply

if TYPE_CHECKING:
    from peft import LoraConfig

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
MERGED_FILE = "polyreply_export.json"
"""Marks a merged model as ours, so that --overwrite replaces nothing else."""
_PREFIX = "base_model.model."
_VLLM_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""The values that vLLM's --max-lora-rank takes."""
_UNUSED = (
    "use_dora",
    "modules_to_save",
    "rank_pattern",
    "alpha_pattern",
    "layer_replication",
    "lora_bias",
    "target_parameters",
    "trainable_token_indices",
    "use_qalora",
    "use_bdlora",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
    "velora_config",
)
"""Settings of a LoraConfig that change what an adapter computes in ways that a K-decoder model does not know."""


# Export.


def export_peft(poly: PolyReply, out: Path, *, backbone: str = "", overwrite: bool = False) -> list[Path]:
    """Write each decoder as a folder that `peft.PeftModel.from_pretrained` loads; returns the K folders.

    `backbone` is what other tools load the backbone by; by default what it was loaded by here.
    """
    _check_lora(poly)
    check_new_folder(out, overwrite, made_by_us=_is_export)
    names = [f"decoder-{k}" for k in range(poly.num_decoders)]
    backbone = backbone or _backbone_name(poly)
    config = _peft_config(poly, backbone)
    with new_folder(out, overwrite) as scratch:
        for k, name in enumerate(names):
            folder = scratch / "out" / name
            config.save_pretrained(str(folder))
            save_file(_peft_weights(poly, k), folder / WEIGHTS_FILE, metadata={"format": "pt"})
        (scratch / "out" / "README.md").write_text(_readme(poly, names, backbone), encoding="utf-8")
    return [out / name for name in names]


def export_merged(poly: PolyReply, k: int, out: Path, *, overwrite: bool = False) -> None:
    """Write decoder k as an ordinary model, its LoRA added to the backbone's weights, with the tokenizer."""
    _check_lora(poly)
    model = poly.model
    if not 0 <= k < poly.num_decoders:
        raise PolyReplyError(f"expected a decoder from 0 to {poly.num_decoders - 1}, found {k}")
    if model.config.adapt == "response" and not model.family.encoder:
        raise PolyReplyError(
            "expected adapters that act on everything (model.adapt: everything), found some that act on the response "
            "alone, which merged weights cannot; export them with --format peft"
        )
    check_new_folder(out, overwrite, made_by_us=lambda folder: (folder / MERGED_FILE).is_file())
    merged = model.plain_backbone()
    for name, adapter in _by_layer(poly).items():
        layer = merged.get_submodule(name)
        weight: Any = layer.weight
        delta_IO = adapter.a_KIr[k] @ adapter.b_KrO[k] * adapter.scale
        weight.data += (delta_IO.T if isinstance(layer, nn.Linear) else delta_IO).to(weight)
    with new_folder(out, overwrite) as scratch, quietly():
        merged.save_pretrained(scratch / "out")
        poly.tokenizer.save_pretrained(scratch / "out")
        (scratch / "out" / MERGED_FILE).write_text(json.dumps({"decoder": k}) + "\n", encoding="utf-8")


def vllm_command(poly: PolyReply, folders: Sequence[Path], backbone: str = "") -> str | None:
    """The command that serves exported decoders with vLLM; None where vLLM cannot."""
    config = poly.model.config
    if config.adapt != "everything" or poly.model.family.encoder:
        return None
    rank = next((size for size in _VLLM_RANKS if size >= config.lora_settings().rank), config.lora_settings().rank)
    modules = " ".join(shlex.quote(f"{folder.name}={folder}") for folder in folders)
    served = shlex.quote(backbone or _backbone_name(poly) or "BACKBONE")
    return (
        f"vllm serve {served} --enable-lora --max-loras {len(folders)} --max-lora-rank {rank} --lora-modules {modules}"
    )


def _backbone_name(poly: PolyReply) -> str:
    """What PEFT and servers can load the backbone by."""
    name = poly.model.backbone_source or poly.model.config.backbone_name
    try:
        return ordinary_name(name)
    except BackboneError:  # the GGUF file it was trained on is not here
        return name


def _check_lora(poly: PolyReply) -> None:
    config = poly.model.config
    found = config.adapter if config.architecture == "multi-adapter" else config.architecture
    if found != "lora":
        raise PolyReplyError(
            f"expected a model with LoRAs (model.adapter: lora), found {found}, which no other tool can read; train "
            "one with model.adapter=lora"
        )
    if config.shared_weights_changed:
        raise PolyReplyError(
            "expected LoRAs on the backbone as it was, found shared weights that training changed; train with "
            "em.freeze_shared=true"
        )


def _peft_config(poly: PolyReply, backbone: str) -> "LoraConfig":
    """The configuration that all K folders have."""
    peft = _peft()
    config, lora = poly.model.config, poly.model.config.lora_settings()
    alpha = lora.scale * lora.rank
    sites = _by_layer(poly)
    is_conv = any(not isinstance(poly.model.backbone.get_submodule(name), nn.Linear) for name in sites)
    made: LoraConfig = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=int(alpha) if float(alpha).is_integer() else alpha,
        lora_dropout=lora.dropout,
        target_modules=_targets(poly.model.backbone, sites, adapted_stacks(poly.model.family, config)),
        fan_in_fan_out=is_conv,
        task_type="SEQ_2_SEQ_LM" if config.is_encoder_decoder else "CAUSAL_LM",
        base_model_name_or_path=backbone,
        alora_invocation_tokens=_invocation(poly),
        inference_mode=True,
    )
    return made


def _invocation(poly: PolyReply) -> list[int] | None:
    """The tokens from which PEFT's activated LoRA acts; None for a plain LoRA."""
    config = poly.model.config
    if config.adapt == "everything" or poly.model.family.encoder:
        return None
    tokens = config.invocation_tokens
    if not tokens or can_occur_in_response(tokens, poly.tokenizer, config.format()):
        shown = poly.tokenizer.decode(tokens) if tokens else "nothing"
        raise PolyReplyError(
            f"expected contexts to end in tokens that no response can hold, found {shown!r}: PEFT's activated LoRA "
            "acts from their last occurrence on, which could be in a response; train with a chat template, or with "
            "model.adapt=everything"
        )
    return tokens


def _targets(backbone: Any, sites: Iterable[str], stacks: Sequence[str]) -> list[str] | str:
    """`target_modules` that name exactly these layers: their last names, or a pattern, or if need be all paths."""
    wanted, every = set(sites), [name for name, module in backbone.named_modules() if hasattr(module, "weight")]
    leaves = sorted({name.rpartition(".")[2] for name in wanted})
    if {name for name in every if name.rpartition(".")[2] in leaves} == wanted:
        return leaves
    pattern = rf"({'|'.join(map(re.escape, stacks))})\..*\.({'|'.join(leaves)})"
    if {name for name in every if re.fullmatch(pattern, name)} == wanted:
        return pattern
    return sorted(wanted)


def _by_layer(poly: PolyReply) -> dict[str, LoraAdapter]:
    """The adapters by the path of their layer in the backbone."""
    model = poly.model
    adapters: Any = model.adapters
    return dict(zip(lora_sites(model.backbone, model.family, model.config), adapters, strict=True))


def _peft_weights(poly: PolyReply, k: int) -> dict[str, Tensor]:
    weights = {}
    for name, adapter in _by_layer(poly).items():
        weights[f"{_PREFIX}{name}.lora_A.weight"] = adapter.a_KIr[k].detach().T.contiguous()
        weights[f"{_PREFIX}{name}.lora_B.weight"] = adapter.b_KrO[k].detach().T.contiguous()
    return weights


def _readme(poly: PolyReply, names: Sequence[str], backbone: str) -> str:
    config, backbone = poly.model.config, backbone or "BACKBONE"
    kind = "AutoModelForSeq2SeqLM" if config.is_encoder_decoder else "AutoModelForCausalLM"
    return (
        f"# {len(names)} decoders as PEFT adapters\n\n"
        f"LoRAs of rank {config.lora_settings().rank} on {backbone}, exported by "
        "polyreply.\n\n```python\n"
        f"from peft import PeftModel\nfrom transformers import {kind}\n\n"
        f'backbone = {kind}.from_pretrained("{backbone}")\n'
        f'decoder = PeftModel.from_pretrained(backbone, "{names[0]}")\n```\n'
    )


def _is_export(folder: Path) -> bool:
    names = {path.name for path in folder.iterdir()}
    return names == {"README.md", *(name for name in names if (folder / name / CONFIG_FILE).is_file())}


def _peft() -> Any:
    try:
        import peft
    except ImportError:
        raise MissingExtraError("peft", "peft", "reading and writing PEFT's folders") from None
    return peft


# Import.


@dataclass(frozen=True)
class PeftFolder:
    """One LoRA as PEFT saved it: its configuration, and A (r, in) and B (out, r) of each layer."""

    path: Path
    config: Any
    layers: Mapping[str, tuple[Tensor, Tensor]]

    @property
    def scale(self) -> float:
        """What B·A is multiplied by."""
        root = self.config.r**0.5 if self.config.use_rslora else self.config.r
        return float(self.config.lora_alpha / root)


def import_peft(folders: Sequence[Path], backbone: str | Path | None = None) -> PolyReply:
    """A K-decoder model of K LoRAs on one backbone, for decoding in one pass and for further EM.

    `backbone` is by default what the folders name. LoRAs of different ranks get the largest one.
    """
    if not folders:
        raise PolyReplyError("expected one folder for each decoder, found none")
    found = [_read_folder(folder) for folder in folders]
    first = found[0]
    for other in found[1:]:
        _check_alike(first, other, same_backbone=backbone is None)
    name = str(backbone or first.config.base_model_name_or_path or "")
    if not name:
        raise PolyReplyError(f"{first.path}: expected the name of a backbone, found none; pass --backbone")
    rank = max(folder.config.r for folder in found)
    alike = all((one.config.r, one.scale) == (rank, first.scale) for one in found)
    lora = LoraSettings(
        rank=rank,
        alpha=first.scale * rank if alike else rank,
        dropout=float(first.config.lora_dropout),
        targets=tuple(sorted(first.layers)),
    )
    invoked = first.config.alora_invocation_tokens
    poly = _around(name, found, lora, invoked=bool(invoked))
    if invoked and list(invoked) != poly.model.config.invocation_tokens:
        raise PolyReplyError(
            f"{first.path}: expected alora_invocation_tokens to be the tokens that end every context, "
            f"{invocation_tokens(poly.tokenizer, poly.model.config.format())}, found {list(invoked)}"
        )
    _fill(poly, found, fold_scale=not alike)
    return poly


def _around(name: str, folders: Sequence[PeftFolder], lora: LoraSettings, *, invoked: bool) -> PolyReply:
    """A model with empty LoRAs at the layers that the folders name."""
    backbone, tokenizer = load_backbone(name)
    family = family_of(backbone.config.model_type)
    layers = dict(backbone.named_modules())
    for folder in folders:
        for layer, (a_rI, b_Or) in folder.layers.items():
            is_linear = isinstance(layers.get(layer), nn.Linear | Conv1D)
            sizes = linear_sizes(layers[layer]) if is_linear else None
            if sizes != (a_rI.shape[1], b_Or.shape[0]):
                raise PolyReplyError(
                    f"{folder.path}: expected a LoRA of {name}, found one for another backbone ({layer} is "
                    f"{f'{sizes[0]} to {sizes[1]}' if sizes else 'not a layer of it'}); pass its own with --backbone"
                )
            if not len(a_rI) == b_Or.shape[1] == folder.config.r:
                raise PolyReplyError(
                    f"{folder.path}: expected weights of rank {folder.config.r}, as its {CONFIG_FILE} says, found "
                    f"{len(a_rI)} and {b_Or.shape[1]} at {layer}"
                )
    encoder = f"{family.encoder}."
    in_encoder = bool(family.encoder) and any(layer.startswith(encoder) for layer in folders[0].layers)
    everything = in_encoder or not (family.encoder or invoked)
    return PolyReply.from_backbone(
        backbone,
        tokenizer,
        backbone_name=name,
        num_decoders=len(folders),
        adapter="lora",
        lora=lora,
        adapt="everything" if everything else "response",
    )


@torch.no_grad()
def _fill(poly: PolyReply, folders: Sequence[PeftFolder], *, fold_scale: bool) -> None:
    """Copy the LoRAs into the stacked parameters; unused ranks stay zero."""
    for name, adapter in _by_layer(poly).items():
        adapter.a_KIr.zero_()
        adapter.b_KrO.zero_()
        for k, folder in enumerate(folders):
            a_rI, b_Or = folder.layers[name]
            adapter.a_KIr[k, :, : len(a_rI)] = a_rI.T.to(adapter.a_KIr)
            adapter.b_KrO[k, : len(a_rI)] = b_Or.T.to(adapter.b_KrO) * (folder.scale if fold_scale else 1.0)


def _read_folder(path: Path) -> PeftFolder:
    """One LoRA; raises if the folder holds anything else."""
    if not (path / CONFIG_FILE).is_file():
        raise PolyReplyError(f"{path}: expected a PEFT folder with an {CONFIG_FILE}, found none")
    if not (path / WEIGHTS_FILE).is_file():
        raise PolyReplyError(f"{path}: expected weights as {WEIGHTS_FILE}, found none; save them as safetensors")
    try:
        written = json.loads((path / CONFIG_FILE).read_text(encoding="utf-8"))
        kind = written.get("peft_type")
        if kind != "LORA":
            raise PolyReplyError(f"{path}: expected a LoRA (peft_type LORA), found {kind}")
        config = _peft().LoraConfig.from_pretrained(str(path))
        tensors = load_file(path / WEIGHTS_FILE)
    except PolyReplyError:
        raise
    except Exception as error:  # broken JSON, unknown settings, a truncated file
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise PolyReplyError(f"{path}: expected a whole PEFT folder, found: {reason}") from error
    used = [name for name in _UNUSED if getattr(config, name, None)]
    if config.bias != "none":
        used.append(f"bias {config.bias}")
    if isinstance(config.init_lora_weights, str) and config.init_lora_weights not in ("gaussian", "orthogonal"):
        used.append(f"init_lora_weights {config.init_lora_weights} (it may change the backbone's weights)")
    if used:
        raise PolyReplyError(
            f"{path}: expected a plain LoRA, found {', '.join(used)}, which K-decoder models do not support"
        )
    return PeftFolder(path, config, _layers(path, tensors))


def _layers(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    names = sorted({key.removeprefix(_PREFIX).partition(".lora_")[0] for key in tensors})
    expected = {f"{_PREFIX}{name}.lora_{matrix}.weight" for name in names for matrix in "AB"}
    if expected != tensors.keys():
        odd = min(expected ^ tensors.keys())
        raise PolyReplyError(f"{path}: expected A and B of a LoRA for each layer, found an unexpected or missing {odd}")
    pairs = {name: tuple(tensors[f"{_PREFIX}{name}.lora_{matrix}.weight"] for matrix in "AB") for name in names}
    return {name: (a_rI, b_Or) for name, (a_rI, b_Or) in pairs.items()}


def _check_alike(first: PeftFolder, other: PeftFolder, *, same_backbone: bool) -> None:
    """Raise unless two LoRAs can be decoders of one model."""
    names = ("base_model_name_or_path",) if same_backbone else ()
    for what in (*names, "alora_invocation_tokens"):
        mine, theirs = getattr(first.config, what), getattr(other.config, what)
        if mine != theirs:
            raise PolyReplyError(f"{other.path}: expected the {what} of {first.path}, {mine!r}, found {theirs!r}")
    if first.layers.keys() != other.layers.keys():
        odd = min(first.layers.keys() ^ other.layers.keys())
        raise PolyReplyError(f"{other.path}: expected LoRAs at the layers of {first.path}, found a difference at {odd}")
