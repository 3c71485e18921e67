"""How a K-decoder model decodes unless told otherwise: as its backbone does, without beam search."""

import copy

from transformers import GenerationConfig

BEAM_SEARCH_ONLY = (
    "num_beams",
    "length_penalty",
    "early_stopping",
    "num_return_sequences",
    "num_beam_groups",
    "diversity_penalty",
)


def without_beam_search(config: GenerationConfig) -> GenerationConfig:
    """A checkpoint's generation config for K decoders, of which each says what it finds most likely.

    Checkpoints such as BART's come with settings for beam search, which here would be refused as settings without
    effect. What they say about lengths and tokens holds for any way to decode, and stays.
    """
    found = [name for name in BEAM_SEARCH_ONLY if name in config.to_diff_dict()]
    if not found:
        return config
    config, default = copy.deepcopy(config), GenerationConfig()
    for name in found:
        setattr(config, name, getattr(default, name, None))
    return config
