// Threads that report their ends to the one that started them.
#include "runtime/comm/rank_threads.h"

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "common/error.h"
#include "rendezvous/store.h"
#include "runtime/comm/shm/shm_world.h"

namespace mtl {

namespace {

struct Failure {
  int rank;
  std::exception_ptr error;
  bool collateral;  // as the thread that throws it judges: ranks do not look at each other's errors
};

bool is_collateral(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    return error.diagnostics().front().code == "comm.peer_lost";
  } catch (...) {
    return false;
  }
}

class Ends {
 public:
  explicit Ends(int running) : running_(running) {}

  void failed(int rank) {
    const std::exception_ptr error = std::current_exception();
    const Failure failure = {rank, error, is_collateral(error)};
    const std::scoped_lock lock(mutex_);
    if (!first_ || (first_->collateral && !failure.collateral)) first_ = failure;
    changed_.notify_all();
  }
  void ended() {
    const std::scoped_lock lock(mutex_);
    --running_;
    changed_.notify_all();
  }
  // Until all have ended, or `patience` after the first failure. Whether all have ended.
  bool wait(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    const auto all = [&] { return running_ == 0; };
    changed_.wait(lock, [&] { return all() || first_; });
    return changed_.wait_for(lock, patience, all);
  }
  std::optional<Failure> first() {
    const std::scoped_lock lock(mutex_);
    return first_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int running_;
  std::optional<Failure> first_;
};

// Throws it again with the rank named. Memory is the machine's, whichever rank asked last.
[[noreturn]] void rethrow(const Failure& failure) {
  const std::string name = fmt::format("rank {}: ", failure.rank);
  try {
    std::rethrow_exception(failure.error);
  } catch (const Error& error) {
    std::vector<Diagnostic> diagnostics = error.diagnostics();
    for (Diagnostic& diagnostic : diagnostics) diagnostic.what = name + diagnostic.what;
    throw Error(error.exit(), std::move(diagnostics));
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw std::runtime_error(name + error.what());
  }
}

// Threads that do not end can only go with the process, without its destructors.
[[noreturn]] void end_process(const Failure& failure) {
  Exit exit = Exit::run_failed;
  std::string text;
  try {
    rethrow(failure);
  } catch (const Error& error) {
    exit = error.exit();
    text = error.what();
  } catch (const std::exception& error) {
    text = fmt::format("{}\n", error.what());
  }
  std::fflush(stdout);
  std::fputs(text.c_str(), stderr);
  std::_Exit(static_cast<int>(exit));
}

}  // namespace

void run_rank_threads(int size, const std::function<void(CommWorld&)>& body,
                      std::chrono::milliseconds patience) {
  const std::unique_ptr<Store> store = make_local_store();
  Ends ends(size);
  const auto run_rank = [&](int rank) {
    try {
      const std::unique_ptr<CommWorld> world =
          size == 1 ? make_self_world() : make_shm_world(*store, {.rank = rank, .size = size});
      body(*world);
    } catch (...) {
      ends.failed(rank);
    }
    ends.ended();
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    try {
      threads.emplace_back(run_rank, rank);
    } catch (const std::system_error&) {  // the others would wait for it
      end_process({rank, std::current_exception(), false});
    }
  }
  const bool all_ended = ends.wait(patience);
  const std::optional<Failure> failure = ends.first();
  if (!all_ended) end_process(*failure);
  for (std::thread& thread : threads) thread.join();
  if (failure) rethrow(*failure);
}

}  // namespace mtl
