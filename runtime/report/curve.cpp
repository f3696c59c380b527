#include "runtime/report/curve.h"

#include <algorithm>
#include <cmath>

namespace mtl {

void Curve::add(int64_t step, double value) {
  drop_from(step);
  if (!std::isfinite(value)) {
    ++not_finite_;
    return;
  }
  const CurvePoint point{step, value};
  if (!buckets_.empty() && buckets_.back().points < per_bucket_) {
    Bucket& bucket = buckets_.back();
    if (value < bucket.low.value) bucket.low = point;
    if (value > bucket.high.value) bucket.high = point;
    bucket.last = point;
    bucket.sum += value;
    ++bucket.points;
    return;
  }
  if (buckets_.size() >= most_) {
    for (size_t i = 0; i < buckets_.size(); i += 2) {
      Bucket merged = buckets_[i];
      if (i + 1 < buckets_.size()) {
        const Bucket& other = buckets_[i + 1];
        if (other.low.value < merged.low.value) merged.low = other.low;
        if (other.high.value > merged.high.value) merged.high = other.high;
        merged.last = other.last;
        merged.sum += other.sum;
        merged.points += other.points;
      }
      buckets_[i / 2] = merged;
    }
    buckets_.resize((buckets_.size() + 1) / 2);
    per_bucket_ *= 2;
  }
  buckets_.push_back({point, point, point, point, value, 1});
}

// Of a bucket that `step` lies in, what came before it is gone too: it is one in hundreds.
void Curve::drop_from(int64_t step) {
  while (!buckets_.empty() && buckets_.back().last.step >= step) buckets_.pop_back();
}

std::vector<CurvePoint> Curve::points() const {
  std::vector<CurvePoint> points;
  const auto put = [&](const CurvePoint& point) {
    if (points.empty() || points.back().step < point.step) points.push_back(point);
  };
  for (const Bucket& bucket : buckets_) {
    if (&bucket == &buckets_.front()) put(bucket.first);
    const bool falls = bucket.high.step <= bucket.low.step;
    put(falls ? bucket.high : bucket.low);
    put(falls ? bucket.low : bucket.high);
  }
  if (!buckets_.empty()) put(buckets_.back().last);
  return points;
}

std::vector<CurvePoint> Curve::means(size_t windows) const {
  std::vector<CurvePoint> means;
  const size_t each = (buckets_.size() + windows - 1) / std::max(windows, size_t{1});
  for (size_t begin = 0; begin < buckets_.size(); begin += each) {
    const size_t end = std::min(begin + each, buckets_.size());
    double sum = 0;
    int64_t points = 0;
    for (size_t i = begin; i < end; ++i) {
      sum += buckets_[i].sum;
      points += buckets_[i].points;
    }
    const int64_t middle = (buckets_[begin].first.step + buckets_[end - 1].last.step) / 2;
    means.push_back({middle, sum / static_cast<double>(points)});
  }
  return means;
}

CurvePoint Curve::lowest() const {
  if (buckets_.empty()) return {};
  return std::min_element(
             buckets_.begin(), buckets_.end(),
             [](const Bucket& a, const Bucket& b) { return a.low.value < b.low.value; })
      ->low;
}

CurvePoint Curve::highest() const {
  if (buckets_.empty()) return {};
  return std::max_element(
             buckets_.begin(), buckets_.end(),
             [](const Bucket& a, const Bucket& b) { return a.high.value < b.high.value; })
      ->high;
}

}  // namespace mtl
