#include "runtime/model/expert_parallel.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace mtl {

RowCounts::RowCounts(std::vector<int32_t> counts, int ranks, int rank)
    : counts_(std::move(counts)),
      ranks_(ranks),
      rank_(rank),
      experts_(static_cast<int64_t>(counts_.size()) / ranks),
      own_(own_of(rank)),
      arriving_(arriving_at(rank)) {}

int64_t RowCounts::own_of(int rank) const {
  const auto first = counts_.begin() + rank * experts_;
  return std::accumulate(first, first + experts_, int64_t{0});
}

int64_t RowCounts::arriving_at(int rank) const {
  int64_t rows = 0;
  for (int from = 0; from < ranks_; ++from) {
    for (int64_t expert = rank; expert < experts_; expert += ranks_) rows += at(from, expert);
  }
  return rows;
}

int64_t RowCounts::of_expert(int64_t round) const {
  int64_t rows = 0;
  for (int from = 0; from < ranks_; ++from) rows += at(from, round * ranks_ + rank_);
  return rows;
}

int64_t RowCounts::most_arriving() const {
  int64_t most = 0;
  for (int rank = 0; rank < ranks_; ++rank) most = std::max(most, arriving_at(rank));
  return most;
}

std::vector<int64_t> RowCounts::sent(int64_t cols) const {
  std::vector<int64_t> elements;
  for (int64_t expert = 0; expert < experts_; ++expert) {
    elements.push_back(at(rank_, expert) * cols);
  }
  return elements;
}

std::vector<int64_t> RowCounts::received(int64_t cols) const {
  std::vector<int64_t> elements;
  for (int64_t expert = rank_; expert < experts_; expert += ranks_) {
    for (int from = 0; from < ranks_; ++from) elements.push_back(at(from, expert) * cols);
  }
  return elements;
}

RowCounts ExpertParallel::share(Tensor counts) const {
  if (size() > 1) {
    const int64_t experts = counts.numel() / size();
    group_.all_gather(counts.slice(rank() * experts, experts), counts);
  }
  return shared(counts);
}

RowCounts ExpertParallel::shared(Tensor counts) const {
  std::vector<int32_t> host(static_cast<size_t>(counts.numel()));
  device_.copy_to_host(host.data(), counts);
  group_.check();  // what a failed exchange leaves says nothing
  return {std::move(host), size(), rank()};
}

void ExpertParallel::to_experts(const RowCounts& counts, Tensor own, Tensor arrived) const {
  group_.all_to_all_rounds(own, counts.sent(own.cols()), arrived, counts.received(own.cols()));
}

void ExpertParallel::from_experts(const RowCounts& counts, Tensor arrived, Tensor own) const {
  group_.all_to_all_rounds(arrived, counts.received(own.cols()), own, counts.sent(own.cols()));
}

}  // namespace mtl
