"""`polyreply export`."""

from pathlib import Path
from typing import Annotated, Literal

import typer


def export(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model folder, or a Hugging Face name.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write.")],
    format: Annotated[
        Literal["peft", "merged"],
        typer.Option(help="peft: a LoRA folder for each decoder. merged: one decoder as an ordinary model."),
    ] = "peft",
    decoder: Annotated[int | None, typer.Option("--decoder", "-k", help="merged: which decoder, from 0.")] = None,
    backbone: Annotated[
        str, typer.Option(help="peft: what other tools load the backbone by, if it is another name or path.")
    ] = "",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export.")] = False,
) -> None:
    """Write the decoders of a LoRA model for other tools: PEFT, vLLM, llama.cpp, Transformers.

    \b
    Examples:
      polyreply export runs/eqhard-em/model --out exported
      polyreply export runs/eqhard-em/model --format merged -k 3 --out decoder-3
    """
    from polyreply import PolyReply
    from polyreply.errors import PolyReplyError
    from polyreply.peft_folders import export_merged, export_peft, vllm_command

    if (decoder is None) == (format == "merged"):
        found = f"decoder {decoder}" if decoder is not None else "none"
        expected = "a decoder, as in -k 3" if format == "merged" else "no decoder, as all are written"
        raise PolyReplyError(f"--format {format} expects {expected}; found {found}")
    poly = PolyReply.from_pretrained(model)
    if decoder is not None:
        export_merged(poly, decoder, out, overwrite=overwrite)
        typer.echo(f"decoder {decoder} is an ordinary model in {out}")
        return
    folders = export_peft(poly, out, backbone=backbone, overwrite=overwrite)
    typer.echo(f"{len(folders)} LoRAs are in {folders[0]} to {folders[-1].name}")
    if command := vllm_command(poly, folders, backbone):
        typer.echo(f"serve them with vLLM:\n  {command}")
