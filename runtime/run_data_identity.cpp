// What tells the data of a run from other data, and how two differ.
#include <algorithm>
#include <mutex>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/data/token_files.h"
#include "runtime/run_data.h"

namespace mtl {

struct RunData::Identity {
  std::mutex mutex;
  nlohmann::json settings;  // what is known without reading
  nlohmann::json whole;     // null until it has been made
};

void RunData::identify(nlohmann::json settings) {
  identity_ = std::make_shared<Identity>();
  identity_->settings = std::move(settings);
}

const nlohmann::json& RunData::identity() const {
  const std::lock_guard lock(identity_->mutex);
  nlohmann::json& whole = identity_->whole;
  if (!whole.is_null()) return whole;
  whole = identity_->settings;
  whole["sources"] = nlohmann::json::array();
  int64_t files = 1;
  for (const Source& source : sources) files += static_cast<int64_t>(source.files.size());
  for (const Source& source : sources) {
    uint64_t hash = source.row ? source.row->fingerprint() : 0;
    for (const std::string& file : source.files) {
      hash = hash * 0x9e3779b97f4a7c15u + content_hash(file, kHashBudget / files);
    }
    whole["sources"].push_back({{"path", source.path},
                                {"format", source.format},
                                {"weight", source.weight},
                                {"for", source.train ? "train" : "valid"},
                                {"tokens", (source.train ? source.train->tokens() : 0) +
                                               (source.valid ? source.valid->tokens() : 0)},
                                {"hash", fmt::format("{:016x}", hash)}});
  }
  // What versions before this one compare.
  if (sources.size() == 1 && sources.front().row) {
    whole["fingerprint"] = whole["sources"][0]["hash"];
  }
  return whole;
}

std::vector<DataDifference> data_differences(const nlohmann::json& here,
                                             const nlohmann::json& checkpoint) {
  std::vector<DataDifference> differences;
  const auto differ = [&](const char* key, const std::string& name, const nlohmann::json& mine,
                          const nlohmann::json& theirs) {
    if (mine == theirs) return;
    differences.push_back({key, fmt::format("{} is {} here, {} in the checkpoint", name,
                                            mine.dump(), theirs.dump())});
  };
  // Of the first version, with one text and two orders, this is all that was kept.
  if (!checkpoint.contains("sources")) {
    differ("data.train", "the fingerprint of data.train's text",
           here.value("fingerprint", nlohmann::json()),
           checkpoint.value("fingerprint", nlohmann::json()));
    return differences;
  }
  const auto of = [](const nlohmann::json& json, const char* use) {
    nlohmann::json list = nlohmann::json::array();
    for (const nlohmann::json& source : json.at("sources")) {
      if (source.value("for", "train") == use) list.push_back(source);
    }
    return list;
  };
  const nlohmann::json mine = of(here, "train"), theirs = of(checkpoint, "train");
  // With a corpus of its own to evaluate on, all of the other is trained on.
  const bool valid_here = !of(here, "valid").empty(),
             valid_there = !of(checkpoint, "valid").empty();
  const auto split_of = [](const nlohmann::json& json, bool own_valid) {
    const nlohmann::json split = json.value("split", nlohmann::json::array());
    const bool whole = own_valid || split.size() < 2 ||
                       std::all_of(split.begin() + 1, split.end(),
                                   [](const nlohmann::json& weight) { return weight == 0; });
    return whole ? nlohmann::json::array({1}) : split;
  };
  const nlohmann::json split = split_of(here, valid_here);
  const nlohmann::json split_there = split_of(checkpoint, valid_there);
  differ("data.train", "the number of sources in data.train", mine.size(), theirs.size());
  for (size_t i = 0; i < std::min(mine.size(), theirs.size()); ++i) {
    const std::string source =
        fmt::format("source {} of data.train ({})", i + 1, mine[i].value("path", ""));
    // The hash of a text is that of its part to train on: with another split it is another.
    const auto tokens = [i](const nlohmann::json& sources) {
      return sources[i].value("tokens", int64_t{0});
    };
    const bool by_split = mine[i].value("format", "") == "text" && tokens(mine) == tokens(theirs) &&
                          split != split_there;
    // A corpus may be moved; what counts is what it holds.
    if (!by_split && mine[i].value("hash", "") != theirs[i].value("hash", "")) {
      differences.push_back(
          {"data.train", fmt::format("{} has other content: {} tokens here, {} in the checkpoint{}",
                                     source, tokens(mine), tokens(theirs),
                                     mine[i].value("path", "") == theirs[i].value("path", "")
                                         ? ""
                                         : ", then of " + theirs[i].value("path", ""))});
    }
    differ("data.train", "the weight of " + source, mine[i].value("weight", 0.0),
           theirs[i].value("weight", 0.0));
  }
  if (split != split_there && valid_here != valid_there) {
    differences.push_back(
        {"data.valid",
         fmt::format(
             "data.valid is {} here, and was {} in the checkpoint: with it all of data.train "
             "is trained on, and without it the part that data.split says",
             valid_here ? "given" : "not given", valid_there ? "given" : "not given")});
  } else {
    differ("data.split", "data.split", split, split_there);
  }
  for (const auto& [field, key] : std::vector<std::pair<const char*, const char*>>{
           {"sampler", "data.sampler"},
           {"seq_len", "train.seq_len"},
           {"reset_positions_at_eod", "data.reset_positions_at_eod"},
           {"reset_attention_at_eod", "data.reset_attention_at_eod"},
           {"mask_eod_loss", "data.mask_eod_loss"}}) {
    differ(key, key, here.value(field, nlohmann::json()),
           checkpoint.value(field, nlohmann::json()));
  }
  if (!differences.empty()) return differences;  // what follows is their consequence
  // Where a document ends matters to who looks at documents.
  const auto truth = [&](const char* field) { return here.value(field, false); };
  if (truth("reset_positions_at_eod") || truth("reset_attention_at_eod") ||
      truth("mask_eod_loss")) {
    differ("data.eod", "data.eod", here.value("eod", nlohmann::json()),
           checkpoint.value("eod", nlohmann::json()));
  }
  return differences;
}

}  // namespace mtl
