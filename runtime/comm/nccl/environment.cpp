#include "runtime/comm/nccl/environment.h"

#include <cstdlib>
#include <map>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/error.h"
#include "runtime/comm/nccl/api.h"

namespace mtl::nccl {

std::string Card::encode() const {
  return nlohmann::json({{"host", host}, {"gpu", gpu}, {"nccl", nccl}}).dump();
}

std::optional<Card> Card::decode(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  try {
    return Card{.host = json.at("host"), .gpu = json.at("gpu"), .nccl = json.at("nccl")};
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

bool check_cards(std::span<const Card> cards, int rank, bool share) {
  std::map<std::pair<std::string, std::string>, std::vector<int>> owners;
  for (size_t i = 0; i < cards.size(); ++i) {
    owners[{cards[i].host, cards[i].gpu}].push_back(static_cast<int>(i));
    if (cards[i].nccl == cards[0].nccl) continue;
    throw Error(Exit::environment,
                {.code = "comm.nccl_version",
                 .what = fmt::format("rank 0 has NCCL {} and rank {} has NCCL {}",
                                     version_text(cards[0].nccl), i, version_text(cards[i].nccl)),
                 .help = "install the same NCCL on all nodes"});
  }
  for (const auto& [gpu, ranks] : owners) {
    if (ranks.size() == 1 || share) continue;
    throw Error(Exit::environment,
                {.code = "comm.gpu_shared",
                 .what = fmt::format("ranks {} and {} use the same GPU ({})", ranks[0], ranks[1],
                                     gpu.second),
                 .help = "start as many ranks per node as it has GPUs (--num_processes), and give "
                         "all ranks of a node the same CUDA_VISIBLE_DEVICES"});
  }
  const Card& own = cards[static_cast<size_t>(rank)];
  return owners[{own.host, own.gpu}].size() > 1;
}

void never_block() {
  const char* said = std::getenv("NCCL_COMM_BLOCKING");
  if (said != nullptr) ::setenv("NCCL_COMM_BLOCKING", "0", 1);
}

bool wants_shared_gpus() {
  const char* text = std::getenv("MTL_SHARE_GPU");
  return text != nullptr && std::string_view(text) == "1";
}

void pretend_own_host(int rank) {
  ::setenv("NCCL_HOSTID", fmt::format("mtl-rank-{}", rank).c_str(), 0);
}

}  // namespace mtl::nccl
