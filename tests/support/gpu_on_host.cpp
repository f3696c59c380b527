#include "support/gpu_on_host.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <exception>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/half.h"
#include "support/async_copies.h"
#include "support/block_on_host.h"
#include "support/fiber.h"
#include "support/warp_exchange.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace mtl::gpu_on_host {

namespace {

constexpr unsigned kMostThreads = 1024;
constexpr size_t kSharedAlignment = 1024;  // as the copy engine wants it

Schedule schedule;

// A thread of the block that runs; then one of the next block, which goes on where this one ended.
struct Fiber {
  explicit Fiber(unsigned i, void (*entry)()) : linear(i), context(entry) {}
  unsigned linear;
  Context context;
  dim3 index;
  enum { runnable, at_block_barrier, at_warp, stopped, done } state = done;
  const char* stopped_at = nullptr;  // and which of those
  unsigned which = 0;
  AsyncCopies copies;
};

struct Grid {
  dim3 grid, block;
  size_t shared_bytes;
  const std::function<void()>* body;
  uint64_t blocks() const { return uint64_t{grid.x} * grid.y * grid.z; }
};

// Of blocks that run at once.
struct Together {
  std::atomic<uint64_t> started = 0;
  std::atomic<bool> failed = false;
  std::exception_ptr failure;  // of the first one that has
};

class Machine {
 public:
  // From the last block to the first: a kernel must not rely on an order.
  void run(const Grid& grid) {
    begin(grid);
    for (uint64_t left = grid.blocks(); left > 0; --left) run_block(grid, left - 1);
  }
  // Some of the blocks, others of which run elsewhere.
  void run_some(const Grid& grid, Together& together) {
    together_ = &together;
    begin(grid);
    for (;;) {
      const uint64_t started = together.started++;
      if (started >= grid.blocks() || together.failed) return;
      run_block(grid, grid.blocks() - 1 - started);
    }
  }

  void wait_for_blocks(std::atomic_ref<unsigned> count, unsigned least) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(180);
    while (count.load(std::memory_order_acquire) < least) {
      if (together_ == nullptr) throw std::runtime_error("a block waits for one that is to follow");
      if (together_->failed) throw std::runtime_error("a block waits for one that has failed");
      if (std::chrono::steady_clock::now() > deadline) {
        throw std::runtime_error("blocks wait for each other");
      }
      // Others of this block, or of this machine.
      if (ready_begin_ == ready_end_) {
        std::this_thread::yield();
      } else {
        make_ready(*current_);
        go_on();
      }
    }
    if (count.load(std::memory_order_acquire) > least) {
      throw std::runtime_error("a block waits for fewer than have been told of");
    }
  }

  unsigned char* shared() { return shared_; }
  size_t shared_bytes() const { return shared_bytes_; }
  unsigned threads() const { return threads_; }
  Fiber& current() { return *current_; }

  void block_barrier() {
    current_->state = Fiber::at_block_barrier;
    ++at_barrier_;
    go_on();
  }

  void stop(const char* what, unsigned which) {
    current_->state = Fiber::stopped;
    current_->stopped_at = what;
    current_->which = which;
    go_on();
  }
  void wake(std::vector<unsigned> threads) {
    std::sort(threads.begin(), threads.end());
    if (backwards_) std::reverse(threads.begin(), threads.end());
    if (schedule.order == Schedule::random) std::shuffle(threads.begin(), threads.end(), random_);
    for (const unsigned i : threads) make_ready(*fibers_[i]);
  }
  size_t choose(size_t count) {
    if (schedule.order == Schedule::random) return random_() % count;
    return backwards_ ? count - 1 : 0;
  }

  unsigned char* exchange(unsigned mask, const void* mine, size_t bytes, bool* last) {
    Fiber& self = *current_;
    const unsigned lane = self.linear % 32;
    WarpExchange& warp = warps_[self.linear / 32];
    if (!warp.bring(lane, mask, mine, bytes)) {
      self.state = Fiber::at_warp;
      go_on();
      return warp.result_of(lane);
    }
    if (last != nullptr) *last = true;
    // The last one to come lets all go on, itself first and all before other warps: a warp gets as
    // far as it can, so that one which overtakes others shows.
    const bool late = schedule.order == Schedule::random && random_() % 16 == 0;
    for (unsigned left = mask & ~(1u << lane); left != 0; left &= left - 1) {
      Fiber& other =
          *fibers_[self.linear / 32 * 32 + static_cast<unsigned>(std::countr_zero(left))];
      if (schedule.order == Schedule::in_step || late) {
        make_ready(other);
        continue;
      }
      other.state = Fiber::runnable;
      ready_[--ready_begin_ % kMostThreads] = &other;
    }
    return warp.result_of(lane);
  }

 private:
  void begin(const Grid& grid) {
    body_ = grid.body;
    threads_ = grid.block.x * grid.block.y * grid.block.z;
    while (fibers_.size() < threads_) {
      const auto i = static_cast<unsigned>(fibers_.size());
      fibers_.push_back(std::make_unique<Fiber>(i, &Machine::enter));
    }
    if (warps_.size() < (threads_ + 31) / 32) warps_.resize((threads_ + 31) / 32);
    const dim3 block = grid.block;
    for (unsigned i = 0; i < threads_; ++i) {
      fibers_[i]->index = dim3(i % block.x, i / block.x % block.y, i / block.x / block.y);
    }
    // Of exactly that size, so that AddressSanitizer knows its end.
    memory_.reset(new unsigned char[grid.shared_bytes + kSharedAlignment]);
    const auto misfit = reinterpret_cast<uintptr_t>(memory_.get()) % kSharedAlignment;
    const auto gap = misfit == 0 ? 0 : kSharedAlignment - misfit;
    shared_ = memory_.get() + gap;
    shared_bytes_ = grid.shared_bytes;
#if defined(__SANITIZE_ADDRESS__)
    __asan_poison_memory_region(memory_.get(), gap);
    __asan_poison_memory_region(shared_ + shared_bytes_, kSharedAlignment - gap);
#endif
    gridDim = grid.grid;
    blockDim = block;
    random_.seed(schedule.seed);
  }

  void run_block(const Grid& grid, uint64_t i) {
    const dim3 size = grid.grid;
    blockIdx = dim3(static_cast<unsigned>(i % size.x), static_cast<unsigned>(i / size.x % size.y),
                    static_cast<unsigned>(i / size.x / size.y));
    std::memset(shared_, 0xff, shared_bytes_);  // NaN in any float type
    backwards_ = schedule.order == Schedule::alternating ? i % 2 != 0
                                                         : schedule.order == Schedule::last_ahead;
    try {
      run_threads();
    } catch (...) {
      // Fibers that have stopped somewhere are of no more use.
      fibers_.clear();
      failure_ = nullptr;
      throw;
    }
  }

  static void enter();

  // What a fiber does all its life: one thread of each block.
  void live() {
    current_->context.arrived();
    for (;;) {
      try {
        (*body_)();
        end_products();
      } catch (...) {
        failure_ = std::current_exception();
      }
      Fiber& self = *current_;
      self.state = Fiber::done;
      ++done_;
      // Copies that nobody waited for arrive some time.
      self.copies.end();
      go_on();
    }
  }

  void run_threads() {
    for (unsigned w = 0; w < (threads_ + 31) / 32; ++w) {
      warps_[w].begin(threads_ - w * 32 < 32 ? (1u << threads_ % 32) - 1 : 0xffffffffu);
    }
    forget_barriers();
    forget_products();
    done_ = at_barrier_ = ready_begin_ = ready_end_ = 0;
    make_all_ready();
    for (;;) {
      run_next(scheduler_);
      if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
      if (done_ == threads_) break;
      while (ready_begin_ == ready_end_) let_some_go_on();
    }
    if (let_a_copy_arrive()) {
      throw std::runtime_error("a block that ends before its copies to shared memory have come");
    }
  }

  // Nobody can run, and not all are done.
  void let_some_go_on() {
    if (done_ + at_barrier_ == threads_) return open_barrier();
    // Products first: they read what copies have not brought yet.
    const bool products_first = schedule.order != Schedule::random || random_() % 2 == 0;
    if (products_first && carry_out_products()) return;
    if (let_a_copy_arrive() || carry_out_products()) return;
    throw std::runtime_error("threads of a block wait for each other: " + who_waits());
  }
  void open_barrier() {
    // Threads that have returned count as arrived on real GPUs too, but a kernel that relies on it
    // is hard to read.
    if (done_ > 0) throw std::runtime_error("a barrier that a thread of the block does not reach");
    at_barrier_ = 0;
    make_all_ready();
  }
  std::string who_waits() const {
    std::map<std::string, unsigned> counts;
    for (unsigned i = 0; i < threads_; ++i) {
      const Fiber& fiber = *fibers_[i];
      if (fiber.state != Fiber::stopped) continue;
      ++counts[std::string(fiber.stopped_at) + " " + std::to_string(fiber.which)];
    }
    if (counts.empty()) {
      return "a warp operation names a lane that waits at a barrier or is gone";
    }
    for (unsigned i = 0; i < threads_; ++i) {
      const auto is = fibers_[i]->state;
      if (is == Fiber::at_warp) ++counts["a warp operation"];
      if (is == Fiber::at_block_barrier) ++counts["__syncthreads"];
    }
    std::string all;
    for (const auto& [what, count] : counts) {
      all += (all.empty() ? "" : ", ") + std::to_string(count) + " at " + what;
    }
    return all + (done_ > 0 ? "; " + std::to_string(done_) + " have ended" : "");
  }

  void make_all_ready() {
    if (schedule.order == Schedule::random) {
      std::vector<unsigned> order((threads_ + 31) / 32);
      std::iota(order.begin(), order.end(), 0u);
      std::shuffle(order.begin(), order.end(), random_);
      for (const unsigned warp : order) {
        for (unsigned i = 32 * warp; i < std::min(threads_, 32 * warp + 32); ++i) {
          make_ready(*fibers_[i]);
        }
      }
      return;
    }
    for (unsigned i = 0; i < threads_; ++i) {
      make_ready(*fibers_[backwards_ ? threads_ - 1 - i : i]);
    }
  }
  void make_ready(Fiber& fiber) {
    fiber.state = Fiber::runnable;
    ready_[ready_end_++ % kMostThreads] = &fiber;
  }

  // The running fiber has stopped: another one's turn, or the scheduler's where there is none.
  void go_on() {
    Fiber& self = *current_;
    if (ready_begin_ == ready_end_ || failure_) {
      self.context.switch_to(scheduler_);
    } else {
      run_next(self.context);
    }
  }
  void run_next(Context& from) {
    Fiber& next = *ready_[ready_begin_++ % kMostThreads];
    if (&next.context == &from) return;
    current_ = &next;
    threadIdx = next.index;
    from.switch_to(next.context);
  }

  Context scheduler_;
  const std::function<void()>* body_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<WarpExchange> warps_;
  Fiber* ready_[kMostThreads] = {};
  unsigned ready_begin_ = 0, ready_end_ = 0;
  unsigned threads_ = 0, done_ = 0, at_barrier_ = 0;
  bool backwards_ = false;
  std::unique_ptr<unsigned char[]> memory_;
  unsigned char* shared_ = nullptr;  // in it
  size_t shared_bytes_ = 0;
  Together* together_ = nullptr;
  Fiber* current_ = nullptr;
  std::exception_ptr failure_;
  std::mt19937 random_;
};

// One of a thread, whose fibers are used again by every launch.
Machine& machine() {
  thread_local Machine one;
  return one;
}

void run_together(const Grid& grid) {
  Together together;
  const auto some = [&] {
    try {
      machine().run_some(grid, together);
    } catch (...) {
      if (!together.failed.exchange(true)) together.failure = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < schedule.resident; ++i) threads.emplace_back(some);
  for (std::thread& thread : threads) thread.join();
  if (together.failure) std::rethrow_exception(together.failure);
}

void Machine::enter() {
  machine().live();
}

}  // namespace

ScheduleScope::ScheduleScope(const Schedule& now) : before_(std::exchange(schedule, now)) {}
ScheduleScope::~ScheduleScope() {
  schedule = before_;
}

uint16_t float_to_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
uint16_t float_to_half(float x) {
  return f32_to_f16(x);
}
float half_to_float(uint16_t bits) {
  return f16_to_f32(bits);
}

void run_grid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& body) {
  const unsigned threads = block.x * block.y * block.z;
  if (threads == 0 || threads > kMostThreads) {
    throw std::runtime_error("a block of " + std::to_string(threads) + " threads");
  }
  if (grid.y > 65535 || grid.z > 65535) throw std::runtime_error("a grid beyond 65,535 in y or z");
  if (shared_bytes > most_shared_bytes) {
    throw std::runtime_error(std::to_string(shared_bytes) + " bytes of dynamic shared memory");
  }
  const Grid all = {grid, block, shared_bytes, &body};
  if (BlocksTogether::wanted && schedule.resident > 1) return run_together(all);
  machine().run(all);
}

void wait_for_blocks(const unsigned* count, unsigned least) {
  machine().wait_for_blocks(std::atomic_ref(*const_cast<unsigned*>(count)), least);
}
void tell_blocks(unsigned* count) {
  std::atomic_ref(*count).fetch_add(1, std::memory_order_release);
}

unsigned char* dynamic_shared() {
  return machine().shared();
}
void block_barrier() {
  machine().block_barrier();
}
unsigned char* exchange(unsigned mask, const void* mine, size_t bytes, bool* last) {
  return machine().exchange(mask, mine, bytes, last);
}
unsigned lane() {
  return machine().current().linear % 32;
}

unsigned this_thread() {
  return machine().current().linear;
}
unsigned block_threads() {
  return machine().threads();
}
size_t dynamic_shared_bytes() {
  return machine().shared_bytes();
}
bool copies_are_early() {
  return schedule.early_copies;
}
size_t choose(size_t count) {
  return machine().choose(count);
}
void stop(const char* what, unsigned which) {
  machine().stop(what, which);
}
void wake(std::vector<unsigned> threads) {
  machine().wake(std::move(threads));
}

void copy_async(void* shared, const void* global, bool valid) {
  for (const void* pointer : {static_cast<const void*>(shared), global}) {
    if (reinterpret_cast<uintptr_t>(pointer) % 16 == 0) continue;
    if (pointer == global && !valid) continue;
    throw std::runtime_error("an asynchronous copy that is not aligned to 16 bytes");
  }
  machine().current().copies.start(shared, valid ? global : nullptr, schedule.early_copies);
}
void copy_async_commit() {
  machine().current().copies.commit();
}
void copy_async_wait(int pending) {
  machine().current().copies.wait(static_cast<size_t>(pending));
}

}  // namespace mtl::gpu_on_host
