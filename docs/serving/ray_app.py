"""The same app on Ray Serve, one replica for each two processors: `serve run ray_app:app`."""

from ray import serve

from polyreply.reply import PolyReply
from polyreply.serve.app import serve_app
from polyreply.serve.settings import ServeSettings


def build() -> object:
    """The app of one replica; it is called where the replica runs, so the model is loaded there."""
    return serve_app(PolyReply.from_pretrained("shipped"), ServeSettings(name="shipped"), any_host=True)


@serve.deployment(ray_actor_options={"num_cpus": 2}, max_ongoing_requests=256)
@serve.ingress(build)
class Server:
    """Ray routes requests to replicas; each batches its own."""


app = Server.bind()
