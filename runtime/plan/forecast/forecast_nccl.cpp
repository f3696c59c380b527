// What NCCL takes of a GPU beside the arena, from the defaults of NCCL 2.28. Never measured: how
// many channels there are NCCL decides from the machine.
//
// A communicator has buffers per channel and connection, at the receiver: 4 MiB for large messages
// (NCCL_BUFFSIZE), 4.7 MiB and 0.5 MiB for small ones, 10 MiB as CUDA gives memory in pieces of
// 2 MiB; and one such piece at the sender. Over the network both ends have the buffers. A ring is
// one connection each way per channel. Where a switch adds up (NVLink SHARP, from three ranks of a
// node on), it has 2 MiB per channel and rank as well. A group that only exchanges numbers, or
// sends messages, is held to few channels by us (nccl_channels.h).
#include <utility>

#include "runtime/plan/forecast/forecast.h"
#include "runtime/plan/nccl_channels.h"

namespace mtl {

namespace {

constexpr double kMebibyte = 1 << 20;
constexpr double kReceiver = 10 * kMebibyte, kSender = 2 * kMebibyte;
constexpr double kSwitch = 2 * kMebibyte;
constexpr int kRingChannels = 16;      // of a node of eight
constexpr int kExchangeChannels = 32;  // to all peers together

double nccl_connection(bool over_network) {
  return over_network ? 2 * kReceiver : kReceiver + kSender;
}

}  // namespace

double nccl_memory(const ModelShape& model, const LayoutChoice& layout, const Cluster& cluster) {
  const int world = layout.world();
  if (cluster.cpu || world == 1) return 0;
  const auto over_network = [&](int ranks, int stride) {
    return group_link(cluster, ranks, stride, world).between_nodes;
  };
  const auto ring = [&](int ranks, int stride, int channels) -> double {
    if (ranks == 1) return 0;
    const bool far = over_network(ranks, stride);
    // Over the network trees beside the rings.
    const double of_channel = nccl_connection(far) * (far ? 2 : 1);
    const bool adds_up = !far && ranks > 2 && cluster.gpu.nvlink_rate > 0;
    return channels * (of_channel + (adds_up ? kSwitch * ranks : 0));
  };
  const auto exchange = [&](int ranks, int stride) {
    return ranks == 1 ? 0 : kExchangeChannels * nccl_connection(over_network(ranks, stride));
  };
  const int tp = layout.tp, cp = layout.cp, ep = layout.ep, pp = layout.pp;
  const int copies = layout.copies, stage = world / pp;
  const int dense = cp * ep * layout.dp / copies, expert = cp * layout.dp / copies;
  double bytes = ring(tp, 1, kRingChannels) + exchange(cp, tp) + exchange(ep, tp * cp) +
                 ring(dense, tp, kRingChannels) + ring(copies, tp * dense, kRingChannels);
  if (ep > 1) {
    bytes += ring(expert, tp * ep, kRingChannels) + ring(copies, tp * ep * expert, kRingChannels);
  }
  if (pp > 1) {
    // Activations and gradients, with each neighbour, both ways; of a way this rank has one end.
    const int pairs = 2 * (pp == 2 ? 1 : 2);
    bytes += pairs * kNcclMessageChannels * nccl_connection(over_network(2, stage));
    if (model.tie_embeddings) bytes += ring(2, (pp - 1) * stage, kRingChannels);
  }
  for (const auto& [ranks, stride] :
       {std::pair(world / tp, tp), std::pair(tp * ep * pp, 1), std::pair(world, 1)}) {
    bytes += ring(ranks, stride, kNcclNumbersChannels);
  }
  return bytes;
}

}  // namespace mtl
