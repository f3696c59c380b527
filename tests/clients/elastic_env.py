"""Every variable that torchrun's documentation promises to a worker, compared with what this job
must give. Rank 0 prints "all as promised"; a rank that finds something else names it and fails."""
import argparse
import os
import sys

parser = argparse.ArgumentParser()
parser.add_argument("--nodes", type=int, default=1)
parser.add_argument("--local", type=int, required=True)
parser.add_argument("--max-restarts", type=int, default=0)
parser.add_argument("--restarts", type=int, default=0)
parser.add_argument("--run-id", default="none")
options = parser.parse_args()

env = os.environ
wrong = []


def number(name):
    try:
        return int(env[name])
    except (KeyError, ValueError):
        wrong.append(f"{name} is {env.get(name)!r}, not a number")
        return -1


def expect(name, value):
    if env.get(name) != str(value):
        wrong.append(f"{name} is {env.get(name)!r}, not {str(value)!r}")


world = options.nodes * options.local
rank, local, group = number("RANK"), number("LOCAL_RANK"), number("GROUP_RANK")
if not (0 <= local < options.local and 0 <= group < options.nodes):
    wrong.append(f"LOCAL_RANK {local} or GROUP_RANK {group} out of range")
expect("RANK", group * options.local + local)
expect("WORLD_SIZE", world)
expect("LOCAL_WORLD_SIZE", options.local)
expect("GROUP_WORLD_SIZE", options.nodes)
expect("ROLE_RANK", rank)
expect("ROLE_WORLD_SIZE", world)
expect("ROLE_NAME", "default")
expect("TORCHELASTIC_RESTART_COUNT", options.restarts)
expect("TORCHELASTIC_MAX_RESTARTS", options.max_restarts)
expect("TORCHELASTIC_RUN_ID", options.run_id)
if not env.get("MASTER_ADDR"):
    wrong.append("MASTER_ADDR is missing")
if not 0 < number("MASTER_PORT") < 65536:
    wrong.append("MASTER_PORT is no port")
if number("OMP_NUM_THREADS") < 1:
    wrong.append("OMP_NUM_THREADS is below 1")
# True would promise that a store already listens on MASTER_PORT.
expect("TORCHELASTIC_USE_AGENT_STORE", "False")
error_file = env.get("TORCHELASTIC_ERROR_FILE", "")
if not error_file:
    wrong.append("TORCHELASTIC_ERROR_FILE is missing")
elif not os.access(os.path.dirname(error_file), os.W_OK):
    wrong.append(f"nothing can be written beside {error_file}")
if "NCCL_ASYNC_ERROR_HANDLING" not in env and "TORCH_NCCL_ASYNC_ERROR_HANDLING" not in env:
    wrong.append("(TORCH_)NCCL_ASYNC_ERROR_HANDLING is missing")

import torch.distributed  # noqa: E402  (last, so that what is missing is said without it)

if not torch.distributed.is_torchelastic_launched():
    wrong.append("torch does not see an elastic launch")
if wrong:
    print(f"rank {rank}: " + "; ".join(wrong), file=sys.stderr, flush=True)
    sys.exit(9)
if rank == 0:
    print("all as promised", flush=True)
