"""What PyTorch programs take from their launcher to meet: env://, the store, collectives."""
import datetime
import os
import socket

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
rank, world = dist.get_rank(), dist.get_world_size()
assert rank == int(os.environ["RANK"]) and world == int(os.environ["WORLD_SIZE"])

total = torch.arange(1000, dtype=torch.float64) + rank
dist.all_reduce(total)
assert torch.equal(total, world * torch.arange(1000, dtype=torch.float64) + world * (world - 1) / 2)

gathered = [None] * world
dist.all_gather_object(gathered, (rank, os.environ["LOCAL_RANK"], os.environ["GROUP_RANK"]))
assert [entry[0] for entry in gathered] == list(range(world)), gathered

default = dist.distributed_c10d._get_default_store()
default.set(f"from-{rank}", str(rank * rank))
default.wait([f"from-{other}" for other in range(world)])
assert [int(default.get(f"from-{other}")) for other in range(world)] == [n * n for n in range(world)]

# A second store of the script's own, as torch programs make them, on a port that rank 0 chooses.
place = [None]
own = None
if rank == 0:
    own = dist.TCPStore(os.environ["MASTER_ADDR"], 0, world, True, wait_for_workers=False)
    place = [own.port]
dist.broadcast_object_list(place, 0)
if rank != 0:
    own = dist.TCPStore(os.environ["MASTER_ADDR"], place[0], world, False)
assert own.add("count", 1) >= 1
dist.barrier()
assert own.add("count", 0) == world

half = dist.new_group(list(range(0, world, 2)))
if rank % 2 == 0:
    one = torch.ones(1)
    dist.all_reduce(one, group=half)
    assert one.item() == (world + 1) // 2
dist.barrier()
if rank == 0:
    print("met", world, "of", len({entry[2] for entry in gathered}), "nodes on",
          socket.gethostname(), flush=True)
dist.destroy_process_group()
