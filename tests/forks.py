"""Processes that are forks of a server which has imported everything: they start fast, and can be killed as any."""

import multiprocessing
import socket

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    [
        "killed",
        "team",
        "polyreply.cli.main",
        "polyreply.reply_file",
        "polyreply.training.loop",
        "transformers.models.t5.modeling_t5",
        "matplotlib.backends.backend_agg",
        "scipy.stats",
    ]
)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def places(number):
    """For each of `number` processes that work together the environment that `torchrun` gives it."""
    common = {"WORLD_SIZE": number, "LOCAL_WORLD_SIZE": number, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    ranks = ({"RANK": rank, "LOCAL_RANK": rank} for rank in range(number))
    return [{name: str(value) for name, value in {**common, **rank}.items()} for rank in ranks]
