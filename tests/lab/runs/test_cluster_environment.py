"""Variables of Slurm, Open MPI and jax that make a process one of several."""

import pytest
from processes import assert_refused, end, start

from tiejax.lab.runs import cluster_environment
from tiejax.lab.settings.command_line import BadInput

VARIABLES = (
    *("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"),
    *("OMPI_MCA_orte_hnp_uri", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
    *("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"),
)
SLURM = {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "a[1-2]", "SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_NTASKS": "2"}
JAX = {"JAX_COORDINATOR_ADDRESS": "localhost:1", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"}
MPI = {"OMPI_MCA_orte_hnp_uri": "1.0;tcp://10.0.0.1:1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}


@pytest.fixture
def environment(monkeypatch):
    """Return a function that sets these variables and removes all others."""

    def change(variables):
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return change


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({}, None),
        (SLURM, "SLURM_NTASKS"),
        ({**SLURM, "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}, None),
        ({name: SLURM[name] for name in SLURM if name != "SLURM_STEP_NODELIST"}, None),  # the shell of a job
        (MPI, "OMPI_COMM_WORLD_SIZE"),
        (JAX, "JAX_COORDINATOR_ADDRESS"),
    ],
)
def test_processes_that_are_started_as_one_of_several(environment, variables, name):
    environment(variables)
    assert cluster_environment.named_by() == name
    cluster_environment.check()


@pytest.mark.parametrize(
    ("variables", "name", "value", "range_of"),
    [
        (SLURM, "SLURM_PROCID", "x", "0 to 1"),
        (SLURM, "SLURM_PROCID", "2", "0 to 1"),
        (SLURM, "SLURM_PROCID", "-1", "0 to 1"),
        (SLURM, "SLURM_NTASKS", "0", "1 to 1048576"),
        (SLURM, "SLURM_NTASKS", "2(x3)", "1 to 1048576"),
        (SLURM, "SLURM_JOB_ID", "job", "0 to 9223372036854775807"),
        (SLURM, "SLURM_LOCALID", "", "0 to 9223372036854775807"),
        (MPI, "OMPI_COMM_WORLD_RANK", "\u0661", "0 to 1"),
        (MPI, "OMPI_COMM_WORLD_LOCAL_RANK", "1.5", "0 to 9223372036854775807"),
        (JAX, "JAX_NUM_PROCESSES", "9" * 400, "1 to 1048576"),
        (JAX, "JAX_PROCESS_ID", "1e0", "0 to 1"),
    ],
)
def test_numbers_that_are_none_are_refused(environment, variables, name, value, range_of):
    environment({**variables, name: value})
    with pytest.raises(BadInput, match=f"^{name}: expected an integer from {range_of}, got '") as error:
        cluster_environment.check()
    assert len(str(error.value)) < 200


def test_a_command_refuses_them_before_it_waits_for_the_others(tmp_path):
    ended = end(start("--out", tmp_path / "run", env={**SLURM, "SLURM_PROCID": "x"}))
    assert_refused(ended, "SLURM_PROCID: expected an integer from 0 to 1, got 'x'")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("nodes", ["[[", "", "node[1-x", "no/de", "a\nb"])
def test_nodes_that_are_no_hosts_are_refused(environment, nodes):
    environment({**SLURM, "SLURM_STEP_NODELIST": nodes})
    if nodes == "node[1-x":  # jax reads the first host only
        cluster_environment.check()
    else:
        with pytest.raises(BadInput, match=r"^SLURM_STEP_NODELIST: expected names of hosts such as node1,node2"):
            cluster_environment.check()
