"""A real Slurm on this machine: munged, slurmctld, and a slurmd on each of some hosts that are namespaces.

Each node has its own network, names, mounts and processes: it is lost by killing one process, and nothing outlives the
run of the tests, however that ends. No file of the machine's own Slurm or munge is read or written.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from kits.eventually import eventually
from kits.hosts.hosts import Host, Lan
from kits.launcher.harness import BIN
from rdzv_plugins.testing.processes import clean_environment

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "setpriv")
CLUSTER = "bench"
LOGIN = "ctl"
"""Where slurmctld runs, and the commands of the tests."""
NODES = ("n1", "n2", "n3")
SWITCHES = {"leaf1": ("n1", "n2"), "leaf2": ("n3",)}
"""The leaves of the network, below one switch, and their nodes."""
GPUS = ("/dev/null", "/dev/zero")
"""Of each node: what Slurm takes for devices."""
PATIENCE_S = 90

_CONF = f"""
ClusterName={CLUSTER}
SlurmctldHost={LOGIN}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# after cred_expire a job that was requeued may start again
AuthInfo=socket={{folder}}/munge.socket,cred_expire=5
StateSaveLocation={{folder}}/state
SlurmdSpoolDir={{folder}}/spool-%n
SlurmctldPidFile={{folder}}/slurmctld.pid
SlurmdPidFile={{folder}}/%n.pid
# no control groups: a container may have none that can be written
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,sched_min_interval=0,bf_interval=1,batch_sched_delay=0
# nodes have more processors than this machine
SlurmdParameters=config_overrides
TopologyPlugin=topology/tree
GresTypes=gpu
ReturnToService=2
# a busy machine takes no node down: tests say so, as an administrator does
SlurmdTimeout=300
KillWait=5
MailProg=/bin/true
NodeName={",".join(NODES)} CPUs=16 Gres=gpu:{len(GPUS)} State=UNKNOWN
PartitionName=main Nodes={",".join(NODES)} Default=YES MaxTime=INFINITE State=UP
"""
_INIT = """
trap 'kill "$daemon"' TERM
"$@" &
daemon=$!
while kill -0 "$daemon" 2>/dev/null; do wait; done
"""
"""Process 1 of a node: it ends with the node's slurmd, and takes what has lost its parent."""


class Slurm:
    """The cluster. Its commands run on the host of slurmctld, as on a login node."""

    def __init__(self, folder: Path, lan: Lan) -> None:
        self.folder, self.lan = folder, lan
        self._hosts: dict[str, Host] = dict(zip((LOGIN, *NODES), lan.add(LOGIN, *NODES), strict=True))
        self._conf = folder / "slurm.conf"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.env = {"SLURM_CONF": str(self._conf), "PATH": f"{BIN}:{os.environ['PATH']}"}
        """What commands of Slurm need, and the tasks that they start."""

    def start(self) -> None:
        """All of it; then the nodes are ready for jobs."""
        self._conf.write_text(_CONF.format(folder=self.folder))
        (self.folder / "gres.conf").write_text("".join(f"Name=gpu File={device}\n" for device in GPUS))
        leaves = [f"SwitchName={name} Nodes={','.join(nodes)}\n" for name, nodes in SWITCHES.items()]
        top = f"SwitchName=top Switches={','.join(SWITCHES)}\n"
        (self.folder / "topology.conf").write_text("".join(leaves) + top)
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        names = {"socket": "socket", "key-file": "key", "log-file": "log", "pid-file": "pid", "seed-file": "seed"}
        files = [f"--{option}={self.folder}/munge.{name}" for option, name in names.items()]
        # --force: the folder is below one that everybody may write
        self._start("munged", LOGIN, ["munged", "--foreground", "--force", *files])
        eventually((self.folder / "munge.socket").exists, self.log)
        self._start("slurmctld", LOGIN, ["slurmctld", "-D", "-f", str(self._conf)])
        for node in NODES:
            self.start_node(node)
        self.wait_idle()

    def start_node(self, node: str) -> None:
        """Its slurmd, and process 1 above it."""
        own = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", _INIT, "init"]
        self._start(node, node, [*own, "slurmd", "-D", "-f", str(self._conf), "-N", node])

    def lose(self, node: str) -> None:
        """The machine is gone, and nobody is told: not even a connection is refused."""
        self.lan.cut(self._hosts[node])
        daemon = self._daemons.pop(node)
        daemon.kill()
        daemon.wait(PATIENCE_S)

    def set_down(self, node: str) -> None:
        """As an administrator does it, or a check of the node's health; of a node that is lost, Slurm then knows."""
        self.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")

    def recover(self) -> None:
        """No job is left, and all nodes are there again."""
        for job in self.run("squeue", "--noheader", "--format=%A").split():
            self.run("scancel", job)
        for node in NODES:
            if node not in self._daemons:
                self.lan.mend(self._hosts[node])
                self.start_node(node)
        self.wait_idle()

    def wait_idle(self) -> None:
        """Until no node has a job, and each can have one."""

        def idle() -> bool:
            states = self.states()
            for node in (node for node, state in states.items() if state.startswith("down")):
                self.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)
            return states == dict.fromkeys(NODES, "idle")

        eventually(idle, lambda: f"{self.states()}\n{self.log()}")

    def states(self) -> dict[str, str]:
        """Of the nodes, as sinfo says it; empty while slurmctld does not answer."""
        found = self.run("sinfo", "--noheader", "--Node", "--format=%N %T", check=False)
        return dict(line.split() for line in found.splitlines())

    def enter(self, host: str, directory: Path) -> list[str]:
        """What to put in front of a command that is to run there, in that directory."""
        return self._hosts[host].enter(directory)

    def run(self, *command: object, check: bool = True, directory: Path | None = None, **env: str) -> str:
        """What a command prints."""
        done = subprocess.run(
            [*self.enter(LOGIN, directory or self.folder), *map(str, command)],
            capture_output=True,
            text=True,
            env=clean_environment() | self.env | env,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0 or not check, f"{command}: {done.stdout}{done.stderr}\n{self.log()}"
        return done.stdout

    def job(self, number: str) -> dict[str, str]:
        """What slurmctld says of a job."""
        return dict(re.findall(r"(\S+?)=(\S*)", self.run("scontrol", "--oneliner", "show", "job", number)))

    def log(self) -> str:
        """What the daemons say, the end of it."""
        files = sorted(self.folder.glob("*.out"))
        return "\n".join(f"--- {file.name}:\n{file.read_text(errors='replace')[-4000:]}" for file in files)

    def close(self) -> None:
        for process in self._daemons.values():
            process.kill()
        for process in self._daemons.values():
            process.wait(PATIENCE_S)
        self.lan.close()

    def _start(self, name: str, host: str, command: Sequence[str]) -> None:
        enter = self._hosts[host].enter(self.folder)
        with (self.folder / f"{name}.out").open("ab") as output:
            self._daemons[name] = subprocess.Popen(
                [*enter, "setpriv", "--pdeathsig", "KILL", *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=clean_environment() | self.env,
            )
