// Products of warpgroups (wgmma). A product is known when all 128 threads have issued it; then it
// is carried out for all of them at once, and each takes its sums at its own wait.
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <deque>
#include <list>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "support/block_on_host.h"
#include "support/warpgroup_on_host.h"

namespace mtl::gpu_on_host {

namespace {

constexpr unsigned kThreads = 128;
constexpr size_t kRows = 64, kDepth = 16, kMostColumns = 256;
constexpr uint32_t kNothing = 0xffffffff;  // a NaN: what sums are before their wait

// What lanes of a warp have to do together.
constexpr int kBegin = 1, kIssued = 2, kWait = 3;

// One thread's sums at `d`: what products that are carried out have made of them.
struct Sums {
  float* d;
  std::vector<float> values;
  unsigned products = 0;  // that the thread has not waited for
};

struct Call {
  uint64_t left, right;
  uint64_t columns, adds;
  Operands operands;
  float (*widen)(uint16_t);
  bool operator==(const Call&) const = default;
};

struct Product {
  explicit Product(const Call& c) : call(c) {}
  Call call;
  std::array<std::array<uint32_t, 4>, kThreads> left = {};
  std::array<Sums*, kThreads> sums = {};
  unsigned issued = 0, taken = 0;  // by threads
};

struct Thread {
  bool begun = false;
  // Counted from the block's beginning: products issued, those waited for, and where each group
  // ends that was not.
  uint64_t issued = 0, taken = 0;
  std::deque<uint64_t> groups;
  std::list<Sums> sums;
};

struct Warpgroup {
  std::array<Thread, kThreads> threads;
  // From number `first` on: those that a thread has not waited for yet.
  std::deque<Product> products;
  uint64_t first = 0;
  uint64_t done = 0;  // products that are carried out
  struct Waiting {
    unsigned thread;
    uint64_t until;  // so many products are done
  };
  std::vector<Waiting> waiting;

  Product& product(uint64_t number) { return products[number - first]; }
  bool complete(uint64_t until) {  // issued by all, so that they can be carried out
    return until <= first ||
           (until - first <= products.size() && product(until - 1).issued == kThreads);
  }
};

// Of the block, as they first come.
thread_local std::vector<std::unique_ptr<Warpgroup>> warpgroups;

Warpgroup& warpgroup() {
  const unsigned i = this_thread() / kThreads;
  if ((i + 1) * kThreads > block_threads()) {
    throw std::runtime_error("a product by a warpgroup that is not whole");
  }
  if (warpgroups.size() <= i) warpgroups.resize(i + 1);
  if (!warpgroups[i]) warpgroups[i] = std::make_unique<Warpgroup>();
  return *warpgroups[i];
}

// An operand in shared memory: "Matrix Descriptor Format" and "Canonical Layouts" of the PTX
// manual, of 16-bit elements.
class Operand {
 public:
  explicit Operand(uint64_t descriptor) {
    const auto field = [&](int bit) {
      return static_cast<uint32_t>(descriptor >> bit & 0x3fff) << 4;
    };
    start_ = field(0);
    leading_ = field(16);
    stride_ = field(32);
    const auto swizzle = descriptor >> 62;
    if (swizzle != 1 && swizzle != 2) {
      throw std::runtime_error("an operand that is not swizzled by 128 or 64 bytes");
    }
    if ((descriptor >> 49 & 7) != 0) throw std::runtime_error("an operand with a base offset");
    row_ = swizzle == 1 ? 128 : 64;
    if ((start_ >> 7 & mask()) != 0) {
      throw std::runtime_error("an operand that does not begin with a repetition of its swizzle");
    }
  }
  // ((8,m),(T,2k)) : ((8T,SBO),(1,T)), with rows of 64 bytes ((4T,SBO),(1,T)).
  uint16_t k_major(uint32_t i, uint32_t k) const {
    return at(i % 8 * row_ + i / 8 * stride_ + 2 * k);
  }
  // ((T,8,m),(8,k)) : ((1,T,LBO),(8T,SBO)), with rows of 64 bytes ((T,4,m),(8,k)) :
  // ((1,T,LBO),(4T,SBO)).
  uint16_t mn_major(uint32_t i, uint32_t k) const {
    const uint32_t columns = row_ / 2;
    return at(2 * (i % columns) + i / columns * leading_ + k % 8 * row_ + k / 8 * stride_);
  }

 private:
  uint32_t mask() const { return row_ == 128 ? 7 : 3; }
  uint16_t at(uint32_t offset) const {
    const uint32_t linear = start_ + offset;
    const uint32_t address = linear ^ ((linear >> 7 & mask()) << 4);
    if (address + 2 > dynamic_shared_bytes()) {
      throw std::runtime_error("an operand beyond the dynamic shared memory");
    }
    uint16_t element = 0;
    std::memcpy(&element, dynamic_shared() + address, sizeof element);
    return element;
  }

  uint32_t start_, leading_, stride_, row_;
};

void carry_out(Product& product) {
  const Call& call = product.call;
  static thread_local float a[kRows][kDepth];
  static thread_local EightFloats b[kMostColumns / 8][kDepth];
  if (call.operands == Operands::registers) {
    for (unsigned thread = 0; thread < kThreads; ++thread) {
      const unsigned row = thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;
      for (unsigned i = 0; i < 4; ++i) {
        for (int part = 0; part < 2; ++part) {
          a[row + i % 2 * 8][column + i / 2 * 8 + static_cast<unsigned>(part)] =
              call.widen(half_of(product.left[thread][i], part));
        }
      }
    }
  } else {
    const Operand left(call.left);
    for (unsigned i = 0; i < kRows; ++i) {
      for (unsigned k = 0; k < kDepth; ++k) {
        a[i][k] = call.widen(call.operands == Operands::columns ? left.mn_major(i, k)
                                                                : left.k_major(i, k));
      }
    }
  }
  const Operand right(call.right);
  for (unsigned i = 0; i < call.columns; ++i) {
    for (unsigned k = 0; k < kDepth; ++k) {
      b[i / 8][k][i % 8] =
          call.widen(call.operands == Operands::rows ? right.k_major(i, k) : right.mn_major(i, k));
    }
  }
  // Four threads have a row, two neighbouring sums of every eight each.
  for (unsigned row = 0; row < kRows; ++row) {
    const unsigned first = row / 16 * 32 + row % 8 * 4, half = row % 16 / 8 * 2;
    for (unsigned block = 0; block < call.columns / 8; ++block) {
      const auto each_sum = [&](auto f) {
        for (unsigned i = 0; i < 8; ++i) {
          f(i, product.sums[first + i / 2]->values[4 * block + half + i % 2]);
        }
      };
      EightFloats sums = {};
      if (call.adds != 0) each_sum([&](unsigned i, float sum) { sums[i] = sum; });
      add_products(sums, a[row], b[block], kDepth);
      each_sum([&](unsigned i, float& sum) { sum = sums[i]; });
    }
  }
}

void carry_out(Warpgroup& group, uint64_t until) {
  for (; group.done < until; ++group.done) carry_out(group.product(group.done));
  std::vector<unsigned> woken;
  std::erase_if(group.waiting, [&](const Warpgroup::Waiting& one) {
    if (one.until > group.done) return false;
    woken.push_back(one.thread);
    return true;
  });
  wake(std::move(woken));
}

void wait_for(Warpgroup& group, uint64_t until) {
  if (group.done >= until) return;
  group.waiting.push_back({this_thread(), until});
  stop("products of warpgroup", this_thread() / kThreads);
}

// The thread's sums at `d` for one product more.
Sums& pending_sums(Thread& thread, float* d, size_t count) {
  for (Sums& sums : thread.sums) {
    if (sums.d == d && sums.values.size() == count) return sums;
    if (d < sums.d + sums.values.size() && sums.d < d + count) {
      throw std::runtime_error("sums that overlap those of a product that was not waited for");
    }
  }
  Sums& sums = thread.sums.emplace_back(Sums{d, std::vector<float>(d, d + count)});
  if (!copies_are_early()) std::fill(d, d + count, std::bit_cast<float>(kNothing));
  return sums;
}

// The thread gets what its products up to `until` have made.
void take(Warpgroup& group, Thread& thread, uint64_t until) {
  for (; thread.taken < until; ++thread.taken) {
    Product& product = group.product(thread.taken);
    ++product.taken;
    Sums* const sums = product.sums[this_thread() % kThreads];
    if (--sums->products > 0) continue;
    if (!copies_are_early()) {
      for (size_t i = 0; i < sums->values.size(); ++i) {
        if (std::bit_cast<uint32_t>(sums->d[i]) == kNothing) continue;
        throw std::runtime_error("sums that were written before their product was waited for");
      }
      std::copy(sums->values.begin(), sums->values.end(), sums->d);
    }
    thread.sums.remove_if([&](const Sums& one) { return &one == sums; });
  }
  while (!group.products.empty() && group.products.front().taken == kThreads) {
    group.products.pop_front();
    ++group.first;
  }
}

}  // namespace

void products_begin() {
  together(std::array<int, 2>{kBegin, 0});
  warpgroup().threads[this_thread() % kThreads].begun = true;
}

void products_issued() {
  together(std::array<int, 2>{kIssued, 0});
  Thread& self = warpgroup().threads[this_thread() % kThreads];
  self.groups.push_back(self.issued);
}

void products_wait(int pending) {
  together(std::array<int, 2>{kWait, pending});
  Warpgroup& group = warpgroup();
  Thread& self = group.threads[this_thread() % kThreads];
  self.begun = false;
  const auto kept = static_cast<size_t>(pending);
  if (self.groups.size() <= kept) return;
  const uint64_t until = self.groups[self.groups.size() - kept - 1];
  self.groups.erase(self.groups.begin(), self.groups.end() - pending);
  wait_for(group, until);
  take(group, self, until);
}

void multiply(float* d, int columns, Operands operands, const uint32_t* left,
              uint64_t left_descriptor, uint64_t right_descriptor, bool adds,
              float (*widen)(uint16_t)) {
  if (columns < 8 || columns > 256 || columns % 8 != 0) {
    throw std::runtime_error("a product of " + std::to_string(columns) + " columns");
  }
  Warpgroup& group = warpgroup();
  const unsigned index = this_thread() % kThreads;
  Thread& self = group.threads[index];
  if (!self.begun) throw std::runtime_error("a product without products_begin() before it");
  const Call call = {left_descriptor, right_descriptor, static_cast<uint64_t>(columns),
                     adds ? 1u : 0u,  operands,         widen};
  together(call);
  const uint64_t number = self.issued++;
  if (number == group.first + group.products.size()) group.products.emplace_back(call);
  Product& product = group.product(number);
  if (product.call != call) {
    throw std::runtime_error("warps of a warpgroup that issue different products");
  }
  if (left != nullptr) std::copy(left, left + 4, product.left[index].begin());
  Sums& sums = pending_sums(self, d, static_cast<size_t>(columns) / 2);
  ++sums.products;
  product.sums[index] = &sums;
  ++product.issued;
  if (!copies_are_early()) return;
  if (product.issued == kThreads) {
    carry_out(group, number + 1);
  } else {
    wait_for(group, number + 1);
  }
  std::copy(sums.values.begin(), sums.values.end(), d);
}

void forget_products() {
  warpgroups.clear();
}

bool carry_out_products() {
  std::vector<std::pair<Warpgroup*, uint64_t>> able;
  for (const auto& group : warpgroups) {
    if (!group) continue;
    uint64_t until = 0;
    for (const Warpgroup::Waiting& one : group->waiting) {
      if (one.until > until && group->complete(one.until)) until = one.until;
    }
    if (until > group->done) able.emplace_back(group.get(), until);
  }
  if (able.empty()) return false;
  const auto [group, until] = able[choose(able.size())];
  carry_out(*group, until);
  return true;
}

void end_products() {
  if (warpgroups.size() <= this_thread() / kThreads || !warpgroups[this_thread() / kThreads])
    return;
  const Thread& self = warpgroups[this_thread() / kThreads]->threads[this_thread() % kThreads];
  if (self.taken != self.issued) {
    throw std::runtime_error("a thread that ends without having waited for its products");
  }
}

}  // namespace mtl::gpu_on_host
