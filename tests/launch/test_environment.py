"""Where a process stands, from each launcher's variables, and from none."""

import pytest

from megatron.errors import UserError
from megatron.parallel.environment import Place, find_place, rendezvous


def test_a_plain_process_stands_alone():
    assert find_place({}) == Place()
    assert rendezvous(Place(), None, {})["WORLD_SIZE"] == "1"


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
        {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "2(x4)"},
        {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
    ],
)
def test_each_launcher_is_understood(variables):
    assert find_place(variables) == Place(3, 8, 1, 2, launched=True)


def test_a_batch_script_outside_a_step_is_one_process():
    assert find_place({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}) == Place()


def test_a_step_gets_its_address_and_a_port_of_its_job():
    found = rendezvous(Place(1, 2, 1, 2, True), None, {"SLURM_LAUNCH_NODE_IPADDR": "10.0.0.4", "SLURM_JOB_ID": "123"})
    assert (found["MASTER_ADDR"], found["MASTER_PORT"], found["RANK"]) == ("10.0.0.4", "20123", "1")
    assert rendezvous(Place(1, 2, 1, 2, True), 7, {"MASTER_ADDR": "host", "MASTER_PORT": "1"})["MASTER_PORT"] == "1"
    assert rendezvous(Place(1, 2, 1, 2, True), 7, {"SLURM_JOB_ID": "1"})["MASTER_PORT"] == "7"


def test_plain_processes_take_a_free_port_each_unless_told():
    assert rendezvous(Place(), None, {"MASTER_PORT": "1"})["MASTER_PORT"] not in ("1", rendezvous(Place())["MASTER_PORT"])
    assert rendezvous(Place(), 7)["MASTER_PORT"] == "7"


@pytest.mark.parametrize("rank, world, says", [("x", "2", "not numbers"), ("2", "2", "RANK=2"), ("-1", "2", "RANK=-1")])
def test_leftover_variables_are_named(rank, world, says):
    with pytest.raises(UserError, match=says):
        find_place({"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": "0"})
