"""Every command of README.md, typed where this project is installed as a wheel and its checkout is out of sight.

A block is typed from its first line to its last. As many commands as ``--nnodes`` asks for are the nodes of one job and
run together; what serves goes on to the end of its block; ``rdzv status`` is asked while what is above it runs.
"""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.etcd.etcd_processes import require_programs
from kits.eventually import eventually
from kits.examples.distributions import ROOT, CleanEnvironment
from kits.examples.guides import start
from kits.examples.tutorial_kit import Block, read_page
from kits.launcher.harness import AgentProcess, Cluster, free_port
from kits.launcher.quick_digits import quick_digits

from rdzv_plugins.testing.launched import outputs
from rdzv_plugins.testing.processes import MARK

pytestmark = pytest.mark.timeout(900)
README = read_page(ROOT / "README.md")

NOT_RUN = {
    "make demo": "makes an environment of its own out of the checkout, and fetches torch for it",
    "srun --nodes=4 --ntasks-per-node=1 --gpus-per-node=8 rdzv-run train.py": "needs a cluster under Slurm",
}
"""Commands that cannot be run here, each with the reason."""

SERVES = ("etcd ", "rdzv serve ")
"""Commands that go on until they are told to end."""

HOLD = """
while not os.path.exists({!r}):
    time.sleep(0.05)
"""
"""At the end of the training script: it is not over before somebody has asked."""


def commands(block: Block) -> list[str]:
    """Of a block, without comments."""
    lines = (re.sub(r"(^|\s)#.*", "", line).strip() for line in block.text.splitlines())
    return [line for line in lines if line]


TYPED = [commands(block) for block in README if block.language == "sh"]
RUN = [each for each in TYPED if set(each) - set(NOT_RUN)]
FIRST = 2
"""So many blocks are in the gate, what a newcomer types first: installed by pip, a job on one node, and on two."""


@pytest.fixture(scope="module")
def installed(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CleanEnvironment]:
    """Torch, what else others have made, and of this project the wheel alone."""
    root = tmp_path_factory.mktemp("readme")
    environment = CleanEnvironment(root / "env")
    environment.add_program("pip", "pip")
    environment.add_program("torchrun", "torch.distributed.run")
    environment.install(wheels, "rdzv-plugins")
    found = environment.run("python", "-c", "import rdzv_plugins; print(rdzv_plugins.__file__)")
    assert Path(found.stdout).is_relative_to(environment.site), found.stderr
    yield environment
    shutil.rmtree(root)


class Reader:
    """Types commands into a folder that has README's examples, and expects that they end well."""

    def __init__(self, jobs: Cluster, installed: CleanEnvironment, wheels: Path) -> None:
        self._jobs = jobs
        self._ports: dict[str, int] = {}
        self.folder = jobs.directory
        self.shown = ""
        jobs.env = installed.variables() | {MARK: jobs.mark, "OMP_NUM_THREADS": "1"}
        # nothing is fetched; in this name a 0 means "no isolation"
        jobs.env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_NO_BUILD_ISOLATION": "0"}
        shutil.copytree(ROOT / "examples", self.folder / "examples", ignore=shutil.ignore_patterns("__pycache__", ".*"))

    def type(self, lines: list[str]) -> None:
        """All of a block."""
        left, servers = list(lines), list[AgentProcess]()
        quick_digits(self.folder / "examples")
        while left:
            size = _nodes_of(left[0])
            job, left = left[:size], left[size:]
            assert [_nodes_of(each) for each in job] == [size] * size, f"these are not all nodes of a job: {job}"
            if job[0] in NOT_RUN:
                continue
            if job[0].startswith(SERVES):
                servers += map(self._start, job)
            elif job[0].startswith("rdzv status"):
                self._ask(job[0])
            elif left and left[0].startswith("rdzv status"):
                self._wait(job, self._start_and_ask(job, left.pop(0)))
            else:
                self._wait(job, [*map(self._start, job)])
        for server in servers:
            server.process.send_signal(signal.SIGTERM)
            server.wait()

    def _start(self, command: str) -> AgentProcess:
        return start(self._jobs, self._here(command), PATH=self._jobs.env["PATH"])

    def _start_and_ask(self, job: list[str], command: str) -> list[AgentProcess]:
        """The nodes of a job, which goes on until the command has been answered."""
        asked = self.folder / "asked"
        with (self.folder / "examples/train_digits.py").open("a") as script:
            script.write(HOLD.format(str(asked)))
        nodes = [*map(self._start, job)]
        eventually(lambda: "training from the start" in outputs(nodes), lambda: outputs(nodes))
        self._ask(command)
        asked.touch()
        return nodes

    def _wait(self, job: list[str], nodes: list[AgentProcess]) -> None:
        codes = [node.wait(300) for node in nodes]
        self.shown += outputs(nodes)
        assert codes == [0] * len(nodes), f"{job}\n{self.shown}"
        if "train_digits.py" in job[0]:
            workers = re.search(r"--nproc-per-node=(\d+)", job[0])
            size = len(nodes) * (int(workers[1]) if workers else 1)
            assert f"world size {size}, restarts 0" in self.shown
            assert re.search(r"^test accuracy: [89]\d\.\d %$", self.shown, re.MULTILINE)

    def _ask(self, command: str) -> None:
        """Until there is an answer: what is asked may be just starting."""

        def answer() -> bool:
            agent = self._start(command)
            answered = agent.wait() == 0
            self.shown += outputs([agent]) if answered else ""
            return answered

        eventually(answer, lambda: f"no answer: {command}\n{outputs(self._jobs.agents)}")

    def _here(self, command: str) -> str:
        """What is elsewhere, or takes long, as it is done here."""
        command = re.sub(r"^pip install '?\.(\[\w+\])?'?$", r"pip install 'rdzv-plugins\1'", command)  # the wheel
        command = command.replace("examples/train_digits.py", "examples/train_digits.py --epochs=2")
        command = command.replace("--nodes=4,16,64", "--nodes=4 --quick --references=none").replace(
            "/tmp/", f"{self.folder}/"
        )
        command = re.sub(r":(\d{4,5})\b", lambda port: f":{self._port(port[1])}", command)
        if command.startswith("etcd "):  # its ports have defaults
            require_programs()
            clients, members = (f"http://127.0.0.1:{self._port(port)}" for port in ("2379", "2380"))
            command = f"{command.removesuffix('&')} --listen-client-urls={clients} --advertise-client-urls={clients}"
            command += f" --listen-peer-urls={members}"
        return command

    def _port(self, there: str) -> int:
        """One that is free here."""
        return self._ports.setdefault(there, free_port())


def _nodes_of(command: str) -> int:
    """How many nodes the job has that is started by this command; 1 for other commands."""
    found = re.match(r"rdzv-run .*--nnodes=(?:\d+:)?(\d+) ", command)
    return int(found[1]) if found else 1


@pytest.mark.parametrize(
    "lines",
    [*RUN[:FIRST], *(pytest.param(each, marks=pytest.mark.thorough) for each in RUN[FIRST:])],
    ids=lambda lines: lines[0][:40],
)
def test_block(jobs: Cluster, installed: CleanEnvironment, wheels: Path, lines: list[str]) -> None:
    reader = Reader(jobs, installed, wheels)
    reader.type(lines)
    if any("--backend=tiered" in line for line in lines):
        assert "prox" in reader.shown
    if any("rdzv bench report" in line for line in lines):
        assert (reader.folder / "results/report.html").is_file()
