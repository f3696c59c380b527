#include "runtime/engine/muon.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace mtl {

namespace {

// Those that K. Jordan found to bring small singular values up fastest, and all of them to between
// 0.7 and 1.2 within five steps.
constexpr NewtonSchulz kSimple[] = {{3.4445f, -4.7750f, 2.0315f}};
// One for each of five steps, by J. You (modded-nanogpt).
constexpr NewtonSchulz kQuintic[] = {{4.0848f, -6.8946f, 2.9270f},
                                     {3.9505f, -6.3029f, 2.6377f},
                                     {3.7418f, -5.5913f, 2.3037f},
                                     {2.8769f, -3.1427f, 1.2046f},
                                     {2.8366f, -3.0525f, 1.2012f}};
// N. Amsel et al., arXiv 2505.16932: the best polynomials for singular values from 0.001 on; all
// but the last one for singular values up to 1.01, so that rounding takes none beyond what they
// bring back.
constexpr NewtonSchulz kPolarExpress[] = {
    {8.2051f, -22.9019f, 16.4607f}, {4.0664f, -2.8612f, 0.5184f}, {3.9096f, -2.8234f, 0.5250f},
    {3.2856f, -2.4647f, 0.5074f},   {2.2779f, -1.6447f, 0.4162f}, {1.8726f, -1.2307f, 0.3585f},
    {1.8564f, -1.2132f, 0.3568f},   {1.8750f, -1.2500f, 0.3750f}};

std::span<const NewtonSchulz> polynomials_of(const TrainSpec::Optimizer::Muon& settings) {
  if (settings.coefficients == "quintic") return kQuintic;
  if (settings.coefficients == "polar_express") return kPolarExpress;
  return kSimple;
}

Tensor matrix(Tensor buffer, int64_t rows, int64_t cols) {
  return Tensor(buffer.data, buffer.dtype, {rows, cols});
}

// What a step is multiplied by, of a matrix with `out` rows and `in` columns as torch's Linear has
// them.
double muon_scale(const TrainSpec::Optimizer::Muon& settings, int64_t out, int64_t in) {
  const auto rows = static_cast<double>(out), columns = static_cast<double>(in);
  if (settings.scale == "shape") return settings.factor * std::sqrt(std::max(1.0, rows / columns));
  if (settings.scale == "unit_rms") return settings.factor * std::sqrt(rows / columns);
  return settings.factor * std::sqrt(std::max(rows, columns));
}

}  // namespace

Muon::Muon(const Plan& plan, const StagePlan& stage, const TrainSpec::Optimizer::Muon& settings,
           Device& device, const Arena& arena, const RankGroups& groups)
    : plan_(plan),
      stage_(stage),
      settings_(settings),
      device_(device),
      groups_(groups),
      tp_(plan.grid.sizes()[Axis::tp]),
      polynomials_(polynomials_of(settings)),
      parts_(arena.find_tensor("muon.parts")),
      arrived_(arena.find_tensor("muon.arrived")),
      whole_(arena.find_tensor("muon.whole")),
      columns_(arena.find_tensor("muon.columns")),
      segment_(arena.find_tensor("muon.segment")),
      next_(arena.find_tensor("muon.next")),
      gram_(arena.find_tensor("muon.gram")),
      gram_squared_(arena.find_tensor("muon.gram_squared")) {
  const GridSizes& sizes = plan.grid.sizes();
  for (const MatrixRound& planned : matrix_rounds(stage.layout, plan.table, sizes)) {
    const int shards = matrix_group(stage.layout, sizes, planned.experts).shards;
    Round round{.experts = planned.experts};
    for (const size_t param : planned.params) {
      Job job{.param = param};
      for (int shard = 0; shard < shards; ++shard) {
        job.parts.push_back(part_of_shard(stage.layout, stage.layout.params[param], shard));
      }
      round.jobs.push_back(std::move(job));
    }
    rounds_.push_back(std::move(round));
  }
}

void Muon::move(Tensor from, Tensor to) const {
  if (from.dtype == to.dtype) {
    device_.copy(from, to);
  } else {
    device_.cast(from, to);
  }
}

void Muon::orthogonalize_all(Tensor directions) {
  for (const Round& round : rounds_) {
    if (group(round).size() > 1) {
      run(round, directions);
    } else {
      for (const Job& job : round.jobs) alone(job, directions);
    }
  }
}

void Muon::alone(const Job& job, Tensor directions) const {
  const OwnedPart& part = job.parts.front();
  const Tensor own = directions.slice(part.gradient, part.count);
  const Tensor whole = whole_.slice(0, part.count);
  move(own, whole);
  move(orthogonalized_parameter(row_of(job), whole), own);
}

void Muon::run(const Round& round, Tensor directions) const {
  Communicator& group = this->group(round);
  const auto rank = static_cast<size_t>(group.rank()), tp = static_cast<size_t>(tp_);
  std::vector<int64_t> sent(static_cast<size_t>(group.size())), received(sent.size());
  int64_t parts = 0;
  for (size_t owner = 0; owner < round.jobs.size(); ++owner) {
    const OwnedPart& part = round.jobs[owner].parts[rank / tp];
    move(directions.slice(part.gradient, part.count), parts_.slice(parts, part.count));
    sent[owner] = part.count;
    parts += part.count;
  }
  const Job* const job = rank < round.jobs.size() ? &round.jobs[rank] : nullptr;
  int64_t arrived = 0;
  if (job) {
    for (size_t q = 0; q < received.size(); ++q) {
      received[q] = job->parts[q / tp].count;
      arrived += received[q];
    }
  }
  const Tensor mine = parts_.slice(0, parts), theirs = arrived_.slice(0, arrived);
  group.all_to_all_v(mine, sent, theirs, received);
  Tensor back = theirs;
  if (job) {
    const Tensor made = orthogonalized_parameter(row_of(*job), assemble(*job, theirs));
    if (tp_ > 1) {
      take_apart(*job, made, theirs);
    } else {
      back = made.slice(0, arrived);
    }
  }
  group.all_to_all_v(back, received, mine, sent);
  parts = 0;
  for (const Job& each : round.jobs) {
    const OwnedPart& part = each.parts[rank / tp];
    move(parts_.slice(parts, part.count), directions.slice(part.gradient, part.count));
    parts += part.count;
  }
}

// visit(first of the piece in `arrived`, of which TP rank, its part)
template <typename Visit>
void Muon::each_piece(const Job& job, const Visit& visit) const {
  int64_t at = 0;
  for (const OwnedPart& part : job.parts) {
    for (int tp = 0; tp < tp_; ++tp) {
      if (part.count > 0) visit(at, tp, part);
      at += part.count;
    }
  }
}

ColumnBlocks Muon::by_columns(const ParamRow& row, Tensor whole, Tensor columns) const {
  ColumnBlocks blocks{.rows = whole, .blocks = columns, .parts = tp_};
  for (int segment = 0; segment < row.segments; ++segment) {
    blocks.sections[static_cast<size_t>(segment)] = {.columns = row.shape[1] / row.segments,
                                                     .pieces = tp_};
  }
  return blocks;
}

Tensor Muon::assemble(const Job& job, Tensor arrived) const {
  const ParamRow& row = row_of(job);
  const int64_t rows = row.shape[0], cols = row.shape[1];
  if (tp_ == 1) return matrix(arrived, rows, cols);
  const Tensor whole = matrix(whole_, rows, cols);
  const bool by_column = row.tp_axis == 1;
  const Tensor local = by_column ? matrix(columns_, rows * tp_, cols / tp_) : whole;
  // Of copies the first one is taken.
  const int copies = tp_copies(row, tp_);
  const int64_t of_rank = stage_.layout.params[job.param].numel;
  each_piece(job, [&](int64_t at, int tp, const OwnedPart& part) {
    if (tp % copies != 0) return;
    const int64_t to = tp / copies * of_rank + part.first;
    device_.copy(arrived.slice(at, part.count), local.slice(to, part.count));
  });
  if (by_column) {
    ColumnBlocks blocks = by_columns(row, whole, local);
    blocks.to_rows = true;
    device_.regroup_columns(blocks);
  }
  return whole;
}

void Muon::take_apart(const Job& job, Tensor whole, Tensor arrived) const {
  const ParamRow& row = row_of(job);
  const bool by_column = row.tp_axis == 1;
  Tensor local = whole;
  if (by_column) {
    local = matrix(columns_, row.shape[0] * tp_, row.shape[1] / tp_);
    device_.regroup_columns(by_columns(row, whole, local));
  }
  const int copies = tp_copies(row, tp_);
  const int64_t of_rank = stage_.layout.params[job.param].numel;
  each_piece(job, [&](int64_t at, int tp, const OwnedPart& part) {
    const int64_t from = tp / copies * of_rank + part.first;
    device_.copy(local.slice(from, part.count), arrived.slice(at, part.count));
  });
}

Tensor Muon::orthogonalized_parameter(const ParamRow& row, Tensor whole) const {
  const int64_t rows = row.shape[0], cols = row.shape[1] / row.segments;
  const auto scale =
      static_cast<float>(muon_scale(settings_, row.out_in ? rows : cols, row.out_in ? cols : rows));
  const Tensor all = matrix(whole, rows, row.shape[1]);
  if (row.segments == 1) return orthogonalized(all, scale);
  const Tensor segment = matrix(segment_, rows, cols);
  for (int64_t i = 0; i < row.segments; ++i) {
    device_.copy_columns({.from = all, .to = segment, .from_column = i * cols, .columns = cols});
    device_.copy_columns({.from = orthogonalized(segment, scale),
                          .to = all,
                          .to_column = i * cols,
                          .columns = cols});
  }
  return all;
}

Tensor Muon::orthogonalized(Tensor x, float scale) const {
  const int64_t rows = x.rows(), cols = x.cols(), smaller = std::min(rows, cols);
  const bool wide = rows <= cols;
  Tensor next = matrix(next_, rows, cols);
  const Tensor gram = matrix(gram_, smaller, smaller);
  const Tensor squared = matrix(gram_squared_, smaller, smaller);
  device_.normalize(x);
  for (int64_t step = 0; step < settings_.steps; ++step) {
    const NewtonSchulz& of = polynomials_[static_cast<size_t>(step) % polynomials_.size()];
    const float by = step + 1 < settings_.steps ? 1.0f : scale;
    device_.matmul({.a = x, .b = x, .c = gram, .transpose_a = !wide, .transpose_b = wide});
    device_.matmul({.a = gram, .b = gram, .c = squared});
    device_.blend(gram, squared, of.b, of.c);
    device_.matmul({.a = wide ? squared : x, .b = wide ? x : squared, .c = next});
    device_.blend(x, next, by * of.a, by);
    std::swap(x, next);
  }
  return x;
}

}  // namespace mtl
