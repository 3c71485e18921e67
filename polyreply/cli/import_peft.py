"""`polyreply import-peft`."""

from pathlib import Path
from typing import Annotated

import typer


def import_peft(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="FOLDER…", help="LoRA folders of PEFT on one backbone, one for each decoder."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The model folder to write.")],
    backbone: Annotated[
        str | None, typer.Option(help="A folder, a GGUF file or a Hugging Face name; by default what the LoRAs name.")
    ] = None,
    reference: Annotated[
        bool, typer.Option("--reference", help="Write only the LoRAs, and where the backbone is.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier model folder.")] = False,
) -> None:
    """Make a K-decoder model of K existing LoRAs, to decode them in one pass or to train them further.

    \b
    Examples:
      polyreply import-peft lora-formal lora-funny lora-short --out model
      polyreply import-peft lora-* --backbone models/smollm2 --reference --out model
    """
    from polyreply.peft_folders import import_peft as read

    read(folders, backbone).save_pretrained(out, overwrite=overwrite, backbone="reference" if reference else "whole")
    typer.echo(f"a model with {len(folders)} decoders is in {out}")
