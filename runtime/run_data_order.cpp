// Which tokens sample k of a run is.
#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/data/best_fit.h"
#include "runtime/data/blend.h"
#include "runtime/data/megatron_order.h"
#include "runtime/data/orders.h"
#include "runtime/data/token_files.h"
#include "runtime/metrics/format.h"
#include "runtime/run_data.h"

namespace mtl {

namespace {

// What was shuffled together for a source, one order behind the other, as a checkpoint keeps it:
// that of the first, and a list of those behind it if there are any.
using Orders = std::vector<MegatronEpochs>;

nlohmann::json to_json(const MegatronEpochs& together) {
  return {{"epochs", together.epochs}, {"separate_final_epoch", together.separate_final_epoch}};
}

nlohmann::json to_json(const Orders& orders) {
  nlohmann::json json = to_json(orders.front());
  for (size_t i = 1; i < orders.size(); ++i) json["then"].push_back(to_json(orders[i]));
  return json;
}

Orders orders_from(const nlohmann::json& json) {
  const auto one = [](const nlohmann::json& of) {
    return MegatronEpochs{.epochs = of.at("epochs"),
                          .separate_final_epoch = of.at("separate_final_epoch")};
  };
  Orders orders = {one(json)};
  for (const nlohmann::json& next : json.value("then", nlohmann::json::array())) {
    orders.push_back(one(next));
  }
  return orders;
}

// Puts the samples of a run in order.
class Orderer {
 public:
  // `before`: as order_samples().
  Orderer(RunData& data, const TrainSpec& spec, int64_t samples, const nlohmann::json& before)
      : data_(data), spec_(spec), samples_(samples), before_(before) {}

  std::unique_ptr<Samples> train() {
    std::vector<const RunData::Source*> sources;
    for (const RunData::Source& source : data_.sources) {
      if (source.train) sources.push_back(&source);
    }
    // Of as many sources; data.on_change=accept may have changed that.
    if (before_.value("orders", nlohmann::json()).size() != sources.size()) {
      before_ = nlohmann::json::object();
    }
    std::unique_ptr<Samples> samples =
        sources.size() == 1 ? of_source(*sources.front(), 0, samples_) : blend(sources);
    if (spec_.data.sampler == "cyclic") {
      settings["samples"] = samples->size();
      samples = cyclic_samples(std::move(samples));
    }
    check_samples(0, samples_, samples->size());
    return documents(std::move(samples));
  }

  // Of the set of that name, or all there is to evaluate on.
  std::unique_ptr<Samples> valid(const std::string& set = {}) {
    std::vector<std::unique_ptr<Samples>> all;
    for (const RunData::Source& source : data_.sources) {
      if (!set.empty() && source.set != set) continue;
      if (source.valid_packing) {
        all.push_back(whole(source.valid, source.valid_packing, std::nullopt));
        continue;
      }
      if (!source.valid || source.valid->tokens() <= spec_.train.seq_len) continue;
      all.push_back(window_samples(document_row(source.valid), spec_.train.seq_len,
                                   SampleOrder::sequential, 0, false));
    }
    return documents(samples_in_turn(std::move(all)));
  }

  nlohmann::json settings = nlohmann::json::object();

 private:
  bool packs() const {
    const std::string& sampler = spec_.data.sampler;
    return sampler == "megatron" || sampler == "single" || sampler == "cyclic";
  }

  // `wanted`: samples of it that the run needs; nothing: one epoch.
  std::unique_ptr<Samples> of_source(const RunData::Source& source, uint64_t number,
                                     std::optional<int64_t> wanted) {
    const int64_t seq = spec_.train.seq_len;
    if (packs()) {
      return packed(source, number, wanted);
    }
    // The first source has the run's own seed, so that one alone is what it always was.
    const uint64_t seed = spec_.train.seed + number * 0x9e3779b97f4a7c15u;
    if (source.train_packing) return whole(source.train, source.train_packing, seed);
    if (spec_.data.sampler == "feistel") {
      return feistel_samples(document_row(source.train), seq, seed);
    }
    return window_samples(
        document_row(source.train), seq,
        spec_.data.sampler == "sequential" ? SampleOrder::sequential : SampleOrder::random, seed,
        true);
  }

  // With a seed without end, else once.
  std::unique_ptr<Samples> whole(std::shared_ptr<const Documents> documents,
                                 std::shared_ptr<const BestFitOrder> packing,
                                 std::optional<uint64_t> seed) const {
    return best_fit_samples(std::move(documents), std::move(packing), spec_.train.seq_len,
                            data_.eod.value_or(0), seed);
  }

  std::unique_ptr<Samples> packed(const RunData::Source& source, uint64_t number,
                                  std::optional<int64_t> wanted) {
    const int64_t seq = spec_.train.seq_len;
    Orders orders;
    if (before_.contains("orders")) orders = orders_from(before_.at("orders").at(number));
    int64_t there = 0;
    for (const MegatronEpochs& order : orders) {
      there += megatron_samples(*source.train, seq, order.epochs);
    }
    if (orders.empty()) {
      orders.push_back(megatron_epochs(*source.train, seq, wanted));
    } else if (wanted && there < *wanted && spec_.data.sampler != "cyclic") {
      // What begins again has all that it needs.
      orders.push_back(megatron_epochs(*source.train, seq, *wanted - there));
    }
    settings["orders"].push_back(to_json(orders));
    std::vector<std::unique_ptr<Samples>> in_turn;
    for (const MegatronEpochs& together : orders) {
      // The first has the run's own seed, as Megatron's.
      const uint64_t seed = spec_.train.seed + in_turn.size() * 0x9e3779b97f4a7c15u;
      const MegatronOrderOptions options{.seq_len = seq, .together = together, .seed = seed};
      MegatronOrder order =
          spec_.data.cache.empty()
              ? megatron_order(*source.train, options)
              : cached_megatron_order(spec_.data.cache,
                                      fmt::format("{} {:016x}", source.path, hash_of(source)),
                                      *source.train, options);
      in_turn.push_back(packed_samples(source.train, std::move(order), seq));
    }
    return in_turn.size() == 1 ? std::move(in_turn.front()) : samples_in_turn(std::move(in_turn));
  }

  std::unique_ptr<Samples> blend(const std::vector<const RunData::Source*>& sources) {
    const bool weighted = sources.front()->weight > 0;
    std::vector<double> weights;
    for (const RunData::Source* source : sources) weights.push_back(source->weight);
    std::vector<int64_t> sizes(sources.size(), 0);
    if (weighted) {
      weights = normalized(weights);
      sizes = blend_sizes(weights, samples_);
    }
    std::vector<std::unique_ptr<Samples>> all;
    std::vector<int64_t> limits;
    int64_t there = 0;
    for (size_t i = 0; i < sources.size(); ++i) {
      all.push_back(
          of_source(*sources[i], i, weighted ? std::optional<int64_t>(sizes[i]) : std::nullopt));
      limits.push_back(all.back()->size());
      // Without weights, as much of each as there is of it.
      const auto& packing = sources[i]->train_packing;
      const int64_t windows =
          packing ? packing->sequences() : (sources[i]->train->tokens() - 1) / spec_.train.seq_len;
      if (!weighted) weights[i] = static_cast<double>(packs() ? limits[i] : windows);
      there += packs() ? limits[i] : 0;
    }
    int64_t size = 0;
    if (spec_.data.sampler == "cyclic" && before_.contains("samples")) {
      size = before_.at("samples").get<int64_t>();  // what was permuted stays what is
    } else if (weighted) {
      for (const double weight : weights) {
        size += static_cast<int64_t>(std::ceil(static_cast<double>(samples_) * weight));
      }
    } else {
      size = packs() ? std::min(samples_, there) : samples_;
    }
    return blended_samples(std::move(all), BlendIndex(normalized(weights), size, limits));
  }

  static uint64_t hash_of(const RunData::Source& source) {
    return source.files.empty() ? source.row->fingerprint() : content_hash(source.files.front());
  }

  std::unique_ptr<Samples> documents(std::unique_ptr<Samples> samples) const {
    const auto& data = spec_.data;
    if (data.whole_documents()) return samples;  // that know where theirs begin
    if (!data.reset_attention_at_eod && !data.reset_positions_at_eod && !data.mask_eod_loss) {
      return samples;
    }
    return with_documents(std::move(samples),
                          {.eod = data_.eod.value_or(-1), .mask_loss = data.mask_eod_loss});
  }

  RunData& data_;
  const TrainSpec& spec_;
  const int64_t samples_;
  nlohmann::json before_;
};

}  // namespace

void pack_documents(RunData::Source& source, const ResolvedSpec& resolved,
                    Diagnostics& diagnostics) {
  if (source.format != "megatron") {
    throw Error(Exit::data,
                {.code = "data.documents",
                 .what = fmt::format(
                     "data.sampler=best_fit takes documents whole, and '{}' is one row of {}",
                     source.path, source.format == "text" ? "text" : "tokens"),
                 .help = "make a corpus with documents of it: mtl data tokenize; or use another "
                         "data.sampler"});
  }
  const int64_t seq = resolved.spec.train.seq_len;
  const auto packing_of = [&](const std::shared_ptr<const Documents>& documents, const char* use) {
    if (!documents) return std::shared_ptr<const BestFitOrder>();
    auto packing = std::make_shared<const BestFitOrder>(best_fit_order(*documents, seq));
    if (packing->cut_documents == 0) return packing;
    const std::string unlearned =
        packing->cut_unlearned > 0
            ? fmt::format(", and {} of them have nothing to learn before that",
                          grouped(packing->cut_unlearned))
            : "";
    diagnostics.add(
        {.code = "data.cut",
         .what = fmt::format("{} of {} documents of '{}' to {} on are longer than train.seq_len {} "
                             "and end there: {} of {} tokens are left out{}",
                             grouped(packing->cut_documents), grouped(documents->count()),
                             source.path, use, seq, grouped(packing->cut_tokens),
                             grouped(documents->tokens()), unlearned),
         .place = resolved.place_of("data.sampler"),
         .help = "use a longer train.seq_len, or data.sampler=megatron, which cuts documents into "
                 "several samples",
         .severity = Diagnostic::Severity::warning});
    return packing;
  };
  source.train_packing = packing_of(source.train, "train");
  source.valid_packing = packing_of(source.valid, "evaluate");
}

void order_samples(RunData& data, const ResolvedSpec& resolved, int64_t samples,
                   Diagnostics& diagnostics, const nlohmann::json& before) {
  const TrainSpec& spec = resolved.spec;
  try {
    Orderer orderer(data, spec, samples, before);
    data.train = orderer.train();
    data.valid = orderer.valid();
    for (const auto& set : spec.data.valid_sets) {
      data.valid_sets.push_back({set.first, orderer.valid(set.first)});
    }
    nlohmann::json& settings = orderer.settings;
    settings["split"] = spec.data.split;
    settings["sampler"] = spec.data.sampler == "single" ? "megatron" : spec.data.sampler;
    settings["seq_len"] = spec.train.seq_len;
    settings["reset_positions_at_eod"] = spec.data.reset_positions_at_eod;
    settings["reset_attention_at_eod"] = spec.data.reset_attention_at_eod;
    settings["mask_eod_loss"] = spec.data.mask_eod_loss;
    if (data.eod) settings["eod"] = *data.eod;
    data.identify(std::move(settings));
  } catch (const Error& error) {
    for (Diagnostic diagnostic : error.diagnostics()) {
      if (!diagnostic.place) diagnostic.place = resolved.place_of("data.sampler");
      diagnostics.add(std::move(diagnostic));
    }
  }
}

}  // namespace mtl
