// A number of a run over its steps, in bounded memory however many there are: neighbours share a
// bucket that keeps its lowest and its highest value, so that no spike is lost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mtl {

struct CurvePoint {
  int64_t step = 0;
  double value = 0;
};

class Curve {
 public:
  // points() gives at most four for each of `buckets`, and two.
  explicit Curve(size_t buckets = 200) : most_(2 * buckets) {}

  // Steps ascend. One that does not has been done again: what was there from it on is dropped.
  // Values that are not finite are counted, and have no point.
  void add(int64_t step, double value);

  bool empty() const { return buckets_.empty(); }
  // All of them as long as they fit, then the lowest and the highest of each bucket; the first and
  // the last always.
  std::vector<CurvePoint> points() const;
  // The means of at most `windows` equal parts, each at its middle.
  std::vector<CurvePoint> means(size_t windows) const;
  CurvePoint last() const { return buckets_.empty() ? CurvePoint{} : buckets_.back().last; }
  // Of all values, the earliest of equal ones; meaningful unless empty().
  CurvePoint lowest() const;
  CurvePoint highest() const;
  int64_t not_finite() const { return not_finite_; }

 private:
  struct Bucket {
    CurvePoint first, low, high, last;
    double sum = 0;
    int64_t points = 1;
  };
  void drop_from(int64_t step);

  size_t most_;
  int64_t per_bucket_ = 1;
  std::vector<Bucket> buckets_;
  int64_t not_finite_ = 0;
};

}  // namespace mtl
