"""A frozen backbone in shares: each process holds a part of every layer, and whole layers exist only while in use.

Every layer is sharded by FSDP2 (`fully_shard`): gathered before its forward and before its backward pass, freed after
both. Embeddings, final norms, output layer and adapters stay whole on every process, and adapters are trained as usual.

A gather is a collective: all processes have to take part, in the same order. But each has its own samples, cut into
chunks by length, and replies that end at different tokens, so they need layers at different times, and different
numbers of times. So nobody gathers without asking. All processes agree on the lowest layer that one of them needs,
gather it together, and those that did not need it free it at once: that is their empty pass. A process that has nothing
left to compute takes part until nobody needs a layer; `Processes` sees to that before each exchange. For the same
reason the main process can save whole weights by itself: the others wait for it at an exchange.

With the lowest layer first, those that are behind catch up, and processes meet again in the next pass.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from polyreply.allocator import return_freed_memory
from polyreply.distributed import Processes
from polyreply.models.families import part

if TYPE_CHECKING:
    from polyreply.models.model import PolyReplyModel


class ShardedLayers:
    """The layers of a backbone's encoder and decoder, sharded over all processes."""

    def __init__(self, model: "PolyReplyModel", processes: Processes) -> None:
        """Shard and freeze the layers, one after the other on the processes' device; this exchanges nothing."""
        self.processes = processes
        self.layers: dict[str, FSDPModule] = {}
        """By the names they have in the model."""
        world: Any = torch.distributed.group.WORLD
        mesh = DeviceMesh.from_group(world, torch.device(processes.device).type)
        for number, (name, layer) in enumerate(_layers_of(model)):
            layer.requires_grad_(False)
            # Our hooks run before those of `fully_shard`, which then find the layer gathered.
            layer.register_forward_hook(partial(self._after_forward, number))
            self.layers[name] = fully_shard(layer, mesh=mesh, reshard_after_forward=True)
            layer.register_forward_pre_hook(partial(self._before_forward, number), prepend=True)
        for parameter in model.backbone.parameters():
            if not isinstance(parameter, DTensor):  # else it keeps the whole file in memory that it was mapped from
                parameter.data = parameter.data.clone()
        if mesh.device_type == "cpu":
            return_freed_memory()
        self._all = list(self.layers.values())
        self._nothing = len(self._all)

    def gather(self, number: int) -> None:
        """Make a layer whole on this process; those that others need first are gathered before it."""
        if _is_sharded(self._all[number]):
            while self._gather_lowest(number) != number:
                pass

    def gather_for_backward(self, number: int, tensors: Iterable[Any]) -> None:
        """Gather a layer again when the gradient of something it computed is known."""
        for tensor in tensors:
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                tensor.register_hook(lambda gradient: self.gather(number))

    def help_others(self) -> None:
        """Take part in gathers until no process needs a layer; this one needs none, so it holds none whole."""
        for layer in self._all:
            layer.reshard()
        while self._gather_lowest(self._nothing) != self._nothing:
            pass

    def whole(self) -> dict[str, Tensor]:
        """Copies of all sharded weights on the CPU, by their names in the model; the others have to help."""
        weights: dict[str, Tensor] = {}
        for number, (name, layer) in enumerate(self.layers.items()):
            self.gather(number)
            weights |= {f"{name}.{inner}": p.detach().to("cpu", copy=True) for inner, p in _parameters(layer)}
            layer.reshard()
        return weights

    def _gather_lowest(self, needed: int) -> int:
        """Agree on a layer and gather it; it stays whole if this process needs it. Returns its number."""
        number = self.processes.least(needed)
        if number == self._nothing:
            return number
        layer = self._all[number]
        was_whole = not _is_sharded(layer)
        # FSDP keeps the tensors of whole weights, which have to be of use in training after decoding in inference mode.
        with torch.inference_mode(False), torch.no_grad():
            layer.reshard()  # otherwise a process that has it already would not take part
            self.processes.together(layer.unshard, sum(p.to_local().nbytes for _, p in _parameters(layer)))
        if number != needed and not was_whole:
            layer.reshard()
        return number

    def _before_forward(self, number: int, layer: nn.Module, arguments: Any) -> None:
        self.gather(number)

    def _after_forward(self, number: int, layer: nn.Module, arguments: Any, output: Any) -> None:
        self.gather_for_backward(number, output if isinstance(output, tuple) else (output,))


def copy_whole(parameter: Tensor, whole: Tensor) -> None:
    """Copy a whole weight into a parameter, or the process's share of it where the parameter is sharded."""
    if not isinstance(parameter, DTensor):
        parameter.copy_(whole)
        return
    mesh = parameter.device_mesh
    for rank, share in enumerate(whole.chunk(mesh.size())):  # fewer than processes where there are too few rows
        if rank == mesh.get_local_rank():
            parameter.to_local().copy_(share)


def _layers_of(model: "PolyReplyModel") -> Iterator[tuple[str, nn.Module]]:
    """The layers with their names, in the order in which a pass runs through them."""
    for stack in filter(None, (model.family.encoder, model.family.decoder)):
        path = f"{stack}.{model.family.layers}"
        for place, layer in enumerate(part(model.backbone, path)):
            yield f"backbone.{path}.{place}", layer


def _parameters(layer: Any) -> Iterator[tuple[str, Any]]:
    return iter(layer.named_parameters())


def _is_sharded(layer: Any) -> bool:
    return any(isinstance(parameter, DTensor) for parameter in layer.parameters())
