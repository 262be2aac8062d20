"""What each scheduler tells a process, as its documentation shows it. The source is named with each."""

from __future__ import annotations

# https://slurm.schedmd.com/srun.html, OUTPUT ENVIRONMENT VARIABLES; SLURM_RESTART_COUNT: sbatch.html. That a real Slurm
# sets them is asked in tests/slurm
SRUN = {
    "SLURM_CLUSTER_NAME": "big",
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NUM_NODES": "3",
    "SLURM_JOB_NODELIST": "node[001-003]",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "node[002-003]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_GPUS_ON_NODE": "8",
    "SLURM_CPUS_ON_NODE": "64",
}
SRUN_TASKS = SRUN | {
    "SLURM_STEP_NUM_TASKS": "6",
    "SLURM_STEP_TASKS_PER_NODE": "4,2",
    "SLURM_PROCID": "4",
}
"""srun --ntasks-per-node=4: the first task of the second node, which has two."""
SBATCH_ARRAY = SRUN | {
    "SLURM_JOB_ID": "4713",
    "SLURM_ARRAY_JOB_ID": "4711",
    "SLURM_ARRAY_TASK_ID": "2",
    "SLURM_RESTART_COUNT": "1",
}
# https://slurm.schedmd.com/heterogeneous_jobs.html: a step over two components
SRUN_HET = SRUN | {
    "SLURM_HET_SIZE": "2",
    "SLURM_JOB_ID_HET_GROUP_0": "4711",
    "SLURM_JOB_ID_HET_GROUP_1": "4712",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_NODELIST": "cpu1,gpu[07-08]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x3)",
    "SLURM_PROCID": "2",
    "SLURM_NODEID": "2",
}
# https://slurm.schedmd.com/sbatch.html, OUTPUT ENVIRONMENT VARIABLES: the script itself is no step
SBATCH_SCRIPT = {name: value for name, value in SRUN.items() if not name.startswith("SLURM_STEP")}
# https://slurm.schedmd.com/salloc.html and slurm.conf.html, use_interactive_step
SALLOC_SHELL = SRUN | {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_NODES": "1", "SLURM_PTY_PORT": "39933"}

# https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html; that PMIx is there, and how: mpirun 5.0.11
MPIRUN = {
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_NODE_RANK": "0",
    "OMPI_UNIVERSE_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-head-node-12345@1",
    "PMIX_RANK": "1",
    "PMIX_HOSTNAME": "node2",
    "PRTE_LAUNCHED": "1",
}
# the same page for v4.1; what is not in it: as mpirun 4.1.4 sets it
MPIRUN_4 = {name: value for name, value in MPIRUN.items() if not name.startswith(("PMIX_", "PRTE_"))} | {
    "OMPI_MCA_orte_hnp_uri": "613089280.0;tcp://10.96.0.1,10.148.0.1:49567;tcp6://[fd00:1::1]:59007",
    "PMIX_NAMESPACE": "613089281",
    "PMIX_RANK": "1",
    "PMIX_HOSTNAME": "node2",
}
# PMIx standard, https://pmix.github.io/standard: no more than this from prterun without Open MPI (that of 5.0.11)
PRTERUN = {name: MPIRUN[name] for name in ("PMIX_NAMESPACE", "PMIX_RANK", "PMIX_HOSTNAME", "PRTE_LAUNCHED")}

# https://flux-framework.readthedocs.io/projects/flux-core/en/latest/man7/flux-environment.html, JOB ENVIRONMENT
FLUX = {
    "FLUX_JOB_ID": "ƒ2FyQT3T",
    "FLUX_JOB_SIZE": "2",
    "FLUX_JOB_NNODES": "2",
    "FLUX_TASK_RANK": "1",
    "FLUX_TASK_LOCAL_ID": "0",
    "PMI_RANK": "1",
    "PMI_SIZE": "2",
    "CUDA_VISIBLE_DEVICES": "0,1,2,3",
}

# PBS Professional Reference Guide, PBS Environment Variables
PBS = {
    "PBS_JOBID": "4711.server",
    "PBS_ENVIRONMENT": "PBS_BATCH",
    "PBS_NODENUM": "1",
    "PBS_TASKNUM": "2",
    "PBS_O_HOST": "login",
}  # and PBS_NODEFILE, which the test writes
PBS_SCRIPT = PBS | {"PBS_NODENUM": "0", "PBS_TASKNUM": "1"}

# github.com/kubeflow/training-operator, pkg/controller.v1/pytorch/envvar.go
PYTORCHJOB = {
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "HOSTNAME": "bert-worker-0",
    "PYTHONUNBUFFERED": "0",
    "MASTER_ADDR": "bert-master-0",
    "MASTER_PORT": "23456",
    "WORLD_SIZE": "3",
    "RANK": "1",
}
# https://www.kubeflow.org/docs/components/trainer: torchrun's own variables; their values: github.com/kubeflow/trainer,
# pkg/runtime/framework/plugins/torch/torch.go and pkg/constants/constants.go
TRAINER = {
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "HOSTNAME": "bert-node-0-1",
    "JOB_COMPLETION_INDEX": "1",
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "4",
    "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "bert-node-0-0.bert",
    "PET_MASTER_PORT": "29500",
}

# https://kubernetes.io/docs/concepts/workloads/controllers/job, Completion mode; https://jobset.sigs.k8s.io/docs/concepts
JOBSET = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "pytorch-workers-0-3", "JOB_COMPLETION_INDEX": "3"}

# https://pytorch.org/torchx, torchx.specs.macros; torchx/schedulers/aws_batch_scheduler.py for the indices
TORCHX = {
    "TORCHX_JOB_ID": "aws_batch://torchx/queue:trainer-x7k2p",
    "TORCHX_RANK0_HOST": "10.1.2.3",
    "TORCHX_ROLE_IDX": "0",
    "TORCHX_ROLE_NAME": "trainer",
    "TORCHX_REPLICA_IDX": "1",
}

# github.com/aws/sagemaker-training-toolkit, ENVIRONMENT_VARIABLES.md
SAGEMAKER = {
    "SM_HOSTS": '["algo-1","algo-2"]',
    "SM_CURRENT_HOST": "algo-2",
    "SM_NUM_GPUS": "8",
    "SM_NUM_CPUS": "32",
    "SM_TRAINING_ENV": '{"hosts": ["algo-1", "algo-2"], "job_name": "preprod-2018-05-31-06-27-15-511"}',
}

# https://slurm.schedmd.com/srun.html, OUTPUT ENVIRONMENT VARIABLES; a node's name may have dots
SLURM_TREE = {"SLURM_TOPOLOGY_ADDR": "s0.s2.node1.site", "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node"}
# the comment on topology_p_get_node_addr of Slurm's topology/block
SLURM_BLOCK = {"SLURM_TOPOLOGY_ADDR": "b1.node1", "SLURM_TOPOLOGY_ADDR_PATTERN": "block.node"}
SLURM_FLAT = {"SLURM_TOPOLOGY_ADDR": "node1", "SLURM_TOPOLOGY_ADDR_PATTERN": "node"}
