#include "runtime/plan/forecast/forecast_matrices.h"

#include <algorithm>
#include <cmath>

#include "runtime/plan/forecast/forecast_compute.h"
#include "runtime/plan/matrices.h"

namespace mtl {

namespace {

// Matrices of one form on a rank of a stage.
struct Form {
  double rows = 0, cols = 0;
  double tp = 1;  // ranks that divide each
  double count = 0;
  bool experts = false;       // that EP divides
  bool columns = false;       // TP divides the columns
  double of_a_parameter = 1;  // of GPT-2's Q, K and V three
  double numel() const { return rows * cols; }
  double local() const { return numel() / tp; }
};

// Of a layer; all layers that have experts are alike, and so are the others.
std::vector<Form> forms_of_layer(const ModelShape& model, const LayoutChoice& layout) {
  std::vector<Form> forms;
  const bool gpt2 = model.family() == Family::gpt2;
  const double tp = layout.tp;
  const auto add = [&](int64_t rows, int64_t cols, double divided, double count = 1,
                       bool columns = false) -> Form& {
    forms.push_back({.rows = static_cast<double>(rows),
                     .cols = static_cast<double>(cols),
                     .tp = divided,
                     .count = std::min(rows, cols) > 1 ? count : 0,
                     .columns = columns});
    return forms.back();
  };
  const int64_t h = model.hidden;
  if (model.has_latents()) {
    const int64_t q_rank = model.latent.q_rank, kv_rank = model.latent.kv_rank;
    if (q_rank > 0) add(q_rank, h, 1);
    add(model.query_width(), q_rank > 0 ? q_rank : h, tp);
    add(model.latent_width(), h, 1);
    add(model.heads * model.latent_pair(), kv_rank, tp);
  } else if (gpt2) {
    add(h, model.query_width(), tp, 3, true).of_a_parameter = 3;
  } else {
    const double kv = std::min<double>(tp, static_cast<double>(model.kv_heads));
    add(model.query_width(), h, tp);
    add(model.key_width(), h, kv);
    add(model.value_width(), h, kv);
  }
  // GPT-2's are stored the other way round.
  const auto add_up = [&](int64_t wide, double count) {
    gpt2 ? add(h, wide, tp, count, true) : add(wide, h, tp, count);
  };
  const auto add_down = [&](int64_t wide, double count) {
    gpt2 ? add(wide, h, tp, count) : add(h, wide, tp, count, true);
  };
  add_down(model.context_width(), 1);
  const auto parts = static_cast<double>(model.mlp_parts());
  if (model.experts == 0) {
    add_up(model.ffn, parts);
    add_down(model.ffn, 1);
    return forms;
  }
  add(model.experts, h, 1);
  if (model.shared_ffn > 0) {
    add_up(model.shared_ffn, parts);
    add_down(model.shared_ffn, 1);
  }
  const size_t first = forms.size();
  const double experts = static_cast<double>(model.experts) / layout.ep;
  add_up(model.ffn, parts * experts);
  add_down(model.ffn, experts);
  for (size_t i = first; i < forms.size(); ++i) forms[i].experts = layout.ep > 1;
  return forms;
}

std::vector<Form> forms_of(const Workload& work, const LayoutChoice& layout,
                           const std::vector<ChunkRange>& chunks) {
  const ModelShape& model = work.model;
  double mixtures = 0, others = 0;
  for (const ChunkRange& chunk : chunks) {
    const auto here = static_cast<double>(model.mixtures_in(chunk.first_layer, chunk.end_layer()));
    mixtures += here;
    others += static_cast<double>(chunk.layers) - here;
  }
  std::vector<Form> forms;
  const auto add = [&](const ModelShape& of, double layers) {
    if (layers == 0) return;
    for (Form form : forms_of_layer(of, layout)) {
      form.count *= layers;
      if (form.count > 0) forms.push_back(form);
    }
  };
  add(model, mixtures);
  add(model.dense_layers.empty() ? model : model.of_dense_layers(), others);
  std::stable_sort(forms.begin(), forms.end(), [](const Form& a, const Form& b) {
    return a.local() * a.of_a_parameter > b.local() * b.of_a_parameter;
  });
  return forms;
}

double shards_of(const LayoutChoice& layout, bool experts) {
  if (layout.zero == 0) return 1;
  return static_cast<double>(layout.cp * (experts ? 1 : layout.ep) * layout.dp) / layout.copies;
}

double time_of(const Workload& work, const Cluster& cluster, const Form& form) {
  const DType type = matrix_type(work.compute);
  const double smaller = std::min(form.rows, form.cols), larger = std::max(form.rows, form.cols);
  const double e = static_cast<double>(bytes_of(type));
  const auto product = [&](double n, double k) {
    return matmul_time(cluster, smaller, n, k, false, type, e);
  };
  const double square = smaller * smaller, blended = 3 * e * (square + form.numel());
  const double step = product(smaller, larger) + product(smaller, smaller) +
                      product(larger, smaller) + stream_time(cluster, blended);
  return static_cast<double>(work.muon_steps) * step + stream_time(cluster, 3 * e * form.numel());
}

}  // namespace

StageMatrices stage_matrices(const Workload& work, const LayoutChoice& layout,
                             const std::vector<ChunkRange>& chunks) {
  StageMatrices sums;
  double whole = 0, arrived = 0, parts = 0, columns = 0, segment = 0, matrix = 0, gram = 0;
  const auto raise = [](double& most, double value) { most = std::max(most, value); };
  for (const Form& form : forms_of(work, layout, chunks)) {
    (form.experts ? sums.experts : sums.dense) += form.count * form.local();
    const double ranks = layout.tp * shards_of(layout, form.experts);
    const double parameter = form.numel() * form.of_a_parameter;
    const double smaller = std::min(form.rows, form.cols);
    if (ranks > 1) {
      raise(arrived, layout.tp * form.local() * form.of_a_parameter);
      raise(parts, std::min(ranks, form.count / form.of_a_parameter) * parameter / ranks);
    }
    if (ranks == 1 || layout.tp > 1) raise(whole, parameter);
    if (layout.tp > 1 && form.columns) raise(columns, parameter);
    if (form.of_a_parameter > 1) raise(segment, form.numel());
    raise(matrix, form.numel());
    raise(gram, smaller * smaller);
  }
  sums.scratch = whole + arrived + parts + columns + segment + matrix + 2 * gram;
  return sums;
}

MatrixTime matrix_time(const Workload& work, const LayoutChoice& layout, const Cluster& cluster,
                       const std::vector<ChunkRange>& chunks) {
  MatrixTime time;
  const double e = static_cast<double>(bytes_of(matrix_type(work.compute)));
  for (const bool experts : {false, true}) {
    const double ranks = layout.tp * shards_of(layout, experts);
    double before = 0, local = 0;  // parameters that are larger; elements
    for (const Form& form : forms_of(work, layout, chunks)) {
      if (form.experts != experts) continue;
      const double behind = before + form.count / form.of_a_parameter;
      // Rounds that begin with one of these: the others of a round are no larger.
      const double rounds = std::ceil(behind / ranks) - std::ceil(before / ranks);
      time.seconds += rounds * form.of_a_parameter * time_of(work, cluster, form);
      before = behind;
      local += form.count * form.local();
    }
    if (local == 0) continue;
    // From fp32 and back.
    const double own = local / shards_of(layout, experts);
    time.seconds += stream_time(cluster, own * 2 * (4 + e));
    if (ranks == 1) continue;
    const double sent = own * e * (ranks - 1) / ranks;
    time.seconds += 2 * all_to_all_time(cluster, static_cast<int>(ranks), 1, layout.world(), sent);
    time.bytes += 2 * sent;
  }
  return time;
}

}  // namespace mtl
