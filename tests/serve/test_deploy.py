"""What docs/serving.md offers to copy is well-formed and fits the command; the Dockerfile's commands work."""

import ast
import os
import re
import shlex
import subprocess
import venv
from pathlib import Path

import httpx2
import pytest
import typer
import yaml
from servers import ServerProcess

from polyreply.cli.main import app
from polyreply.models.gguf_file import INSTALL_SMOLLM
from polyreply.models.shipped import SMOLLM2_10

ROOT = Path(__file__).parents[2]
FILES = ROOT / "docs" / "serving"
OPTIONS = {name for option in typer.main.get_command(app).commands["serve"].params for name in option.opts}


def dockerfile():
    """Its instructions, in order."""
    text = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text())
    return [tuple(line.split(" ", 1)) for line in text.splitlines() if line and not line.startswith("#")]


def given(instruction):
    return [rest for name, rest in dockerfile() if name == instruction]


def check_options(arguments):
    assert {one for one in arguments if one.startswith("--")} <= OPTIONS


def test_kubernetes_objects_fit_together():
    deployment, service, scaler = yaml.safe_load_all((FILES / "kubernetes.yaml").read_text())
    assert [one["kind"] for one in (deployment, service, scaler)] == [
        "Deployment",
        "Service",
        "HorizontalPodAutoscaler",
    ]
    template = deployment["spec"]["template"]
    assert (
        deployment["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"] == service["spec"]["selector"]
    )
    (container,) = template["spec"]["containers"]
    check_options(container["args"])
    assert {container[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe")} == {
        "/health",
        "/ready",
    }
    port = container["args"][container["args"].index("--port") + 1]
    assert int(port) == container["ports"][0]["containerPort"]
    grace = container["args"][container["args"].index("--grace") + 1]
    assert template["spec"]["terminationGracePeriodSeconds"] > int(grace)
    assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]


def test_the_ray_app_uses_names_that_exist():
    tree = ast.parse((FILES / "ray_app.py").read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("polyreply"):
            module = __import__(node.module, fromlist=["names"])
            assert all(hasattr(module, alias.name) for alias in node.names)
    config = yaml.safe_load((FILES / "ray.yaml").read_text())
    (application,) = config["applications"]
    module, name = application["import_path"].split(":")
    assert (FILES / f"{module}.py").is_file()
    assert name in {target.id for node in tree.body if isinstance(node, ast.Assign) for target in node.targets}
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    assert {one["name"] for one in application["deployments"]} <= classes


def test_the_proxy_passes_streams_through():
    text = re.sub(r"#.*", "", (FILES / "nginx.conf").read_text())
    assert (
        text.count("{") == text.count("}") and "proxy_buffering off;" in text and "proxy_set_header Host $host;" in text
    )
    statements = [line.strip() for line in text.splitlines() if line.strip()]
    assert all(line.endswith(("{", "}", ";")) for line in statements)
    for command in re.findall(r"polyreply serve (.*)", (FILES / "nginx.conf").read_text()):
        check_options(shlex.split(command))
        assert f"server 127.0.0.1:{shlex.split(command)[1]};" in text


def test_the_dockerfile_names_what_exists():
    entry, command = (yaml.safe_load(given(name)[-1]) for name in ("ENTRYPOINT", "CMD"))
    assert entry == ["polyreply", "serve"]
    check_options(command)
    assert command[command.index("--port") + 1] == given("EXPOSE")[0]
    assert all((ROOT / rest.split()[0]).exists() for rest in given("COPY") if not rest.startswith("--"))


def test_the_guides_install_the_model_that_their_example_asks_for():
    guide, readme = ((ROOT / name).read_text() for name in ("docs/serving.md", "README.md"))
    assert re.findall(r'model="(.*?)"', guide) == [SMOLLM2_10]
    commands = f"pip install 'polyreply[serve,smollm]'\n{INSTALL_SMOLLM}\npolyreply serve\n"
    assert commands in guide and commands in readme


@pytest.mark.slow
def test_the_dockerfiles_commands_work_in_a_fresh_environment(tmp_path):
    """Everything but the base image: the wheel is built, installed with its extras, and the server starts."""
    venv.create(tmp_path / "fresh", with_pip=True)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment |= {
        "PATH": f"{tmp_path / 'fresh' / 'bin'}:{os.environ['PATH']}",
        "POLYREPLY_CACHE": str(tmp_path / "cache"),
    }
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "constraints.txt").write_text((ROOT / "constraints.txt").read_text())
    for command in given("RUN"):
        if command.startswith("useradd"):
            continue
        line = command.replace("/wheels", str(tmp_path / "wheels"))
        where = ROOT if " wheel " in line else tmp_path
        done = subprocess.run(["bash", "-ec", line], cwd=where, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    entry, command = (yaml.safe_load(given(name)[-1]) for name in ("ENTRYPOINT", "CMD"))
    command[command.index("--port") + 1] = "0"
    program = (str(tmp_path / "fresh" / "bin" / entry[0]), *entry[1:])
    server = ServerProcess(*command, program=program, env=environment)
    try:
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        assert httpx2.get(f"{url}/health").status_code == 200
        body = {"contexts": ["Are you free on Sunday?"]}
        answer = httpx2.post(f"{url}/v1/replies", json=body, timeout=300).json()
        assert len(answer["results"][0]["replies"]) == 10
        assert server.stop() == 0
    finally:
        server.process.kill()
        server.wait()
