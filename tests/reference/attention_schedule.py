"""How long the blocks of attention's joint backward on Hopper wait for one another, simulated:
runtime/device/cuda/attention_query_sums.h. Needs nothing but Python.

    python3 tests/reference/attention_schedule.py

Blocks own 128 keys and start in their order on 132 multiprocessors. A block's step is
a pair of tiles, the unit of time; it ends when the block before it in the order of sums (for the
same queries) has passed its turn on, half a step after its own. A block that starts or ends takes
OVERHEAD steps. The table has the end of the last block over the work spread evenly, for both
orders: "down" begins with the last queries and the longest blocks and adds in the order of the keys;
"up" begins on the diagonal with the shortest blocks and adds in the reverse order.
"""

import heapq

MULTIPROCESSORS = 132
LEVEL2 = 50 << 20
OVERHEAD = 0.5
PASSED_ON = 0.5

# name: sequences, key/value heads, query heads of each, tokens, head_dim
FORMS = {
    "GPT-2 124M, 32 x 1024": (32, 12, 1, 1024, 64),
    "GPT-2 1.5B, 16 x 1024": (16, 25, 1, 1024, 64),
    "heads of 128, 4 x 2048": (4, 16, 1, 2048, 128),
    "LLaMA 8B, 4 x 4096": (4, 8, 4, 4096, 128),
    "LLaMA 8B, 2 x 8192": (2, 8, 4, 8192, 128),
}


def section_of(heads, group, tokens, dim):
    """order_of_joint_keys()."""
    fit = max(MULTIPROCESSORS // 32, LEVEL2 // 2 // (2 * tokens * dim * 2 * group))
    return -(-heads // -(-heads // fit))


def simulate(heads, group, tokens, dim, down):
    keys, queries = tokens // 128, tokens // (128 if dim == 64 else 64)
    per_key = queries // keys
    section = section_of(heads, group, tokens, dim)
    free = [0.0] * MULTIPROCESSORS
    passed_on = {}
    work = end = 0.0
    for first in range(0, heads, section):
        for n in range(keys):
            key = n if down else keys - 1 - n
            before = key - 1 if down else key + 1
            tiles = range(key * per_key, queries)
            for head in range(first, min(first + section, heads)):
                now = heapq.heappop(free) + OVERHEAD
                turns = passed_on.pop((head, before), {})
                mine = {}
                for tile in reversed(tiles) if down else tiles:
                    for member in range(group):
                        now = max(now + 1, turns.get((tile, member), 0))
                        mine[tile, member] = now + PASSED_ON
                now += OVERHEAD
                passed_on[head, key] = mine
                work += len(tiles) * group + 2 * OVERHEAD
                heapq.heappush(free, now)
                end = max(end, now)
    return end / (work / MULTIPROCESSORS)


def main():
    print(f"{'':26}{'down':>7}{'up':>7}")
    for name, (batch, kv_heads, group, tokens, dim) in FORMS.items():
        ends = [simulate(batch * kv_heads, group, tokens, dim, down) for down in (True, False)]
        print(f"{name:26}{ends[0]:7.3f}{ends[1]:7.3f}")


if __name__ == "__main__":
    main()
