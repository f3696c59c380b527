"""A small DistributedDataParallel training. Rank 0 prints the mean loss of every step, exactly."""
import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--init", default="env://")
parser.add_argument("--rank", type=int, default=-1)
parser.add_argument("--world", type=int, default=-1)
parser.add_argument("--steps", type=int, default=12)
options = parser.parse_args()

torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=options.init, rank=options.rank,
                        world_size=options.world)
rank, world = dist.get_rank(), dist.get_world_size()

torch.manual_seed(7)
model = DistributedDataParallel(torch.nn.Sequential(
    torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh(),
    torch.nn.Linear(64, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
data = torch.randn(options.steps, 8 * world, 16)
target = torch.sin(data.sum(dim=2, keepdim=True))
for step in range(options.steps):
    mine = slice(rank * 8, (rank + 1) * 8)
    loss = torch.nn.functional.mse_loss(model(data[step, mine]), target[step, mine])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    if rank == 0:
        print(f"step {step} loss {(mean / world).item().hex()}", flush=True)
dist.barrier()
dist.destroy_process_group()
