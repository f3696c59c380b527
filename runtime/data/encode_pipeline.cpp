// One thread reads, several encode, the caller takes; what is between them is bounded by its bytes.
// Whatever goes wrong becomes the step at whose place it happened, so that everything before it is
// delivered.
#include "runtime/data/encode_pipeline.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "common/threads.h"

namespace mtl {

namespace {

// Of text that is being worked on. Tokens take up to four times their text.
constexpr size_t kInFlightBytes = size_t{24} << 20;
constexpr std::chrono::milliseconds kPatience{100};

}  // namespace

struct EncodePipeline::State {
  struct Work {
    int64_t index = 0;
    EncodedStep step;
    size_t cost = 0;
    std::exception_ptr error;
  };

  State(const Tokenizer& with, const EncodeOptions& how, const CutOptions& cut,
        const std::vector<TextInput>& inputs, size_t begin_file, const UnitCutter::Start& begin)
      : tokenizer(with),
        encode(how),
        cut_options(cut),
        files(inputs),
        first_file(begin_file),
        start(begin) {}
  ~State() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    room.notify_all();
    available.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  // False when nobody wants it any more.
  bool submit(Work work) {
    std::unique_lock lock(mutex);
    // One unit may be larger than all the room there is.
    work.cost = work.step.unit.text.size() + sizeof(Work);
    room.wait(lock,
              [&] { return stop || in_flight == 0 || in_flight + work.cost <= kInFlightBytes; });
    if (stop) return false;
    work.index = submitted++;
    in_flight += work.cost;
    if (work.step.ends_file || work.error) {
      done.emplace(work.index, std::move(work));
      ready.notify_one();
    } else {
      todo.push_back(std::move(work));
      available.notify_one();
    }
    return true;
  }

  void read_all() {
    int64_t bytes_before = 0;
    for (size_t i = 0; i < first_file; ++i) bytes_before += files[i].bytes;
    for (size_t i = first_file; i < files.size(); ++i) {
      try {
        UnitCutter cutter(files[i], cut_options, i == first_file ? start : UnitCutter::Start());
        while (true) {
          Work work;
          work.step.file = i;
          const bool more = cutter.next(work.step.unit);
          work.step.ends_file = !more;
          work.step.text_bytes = static_cast<int64_t>(work.step.unit.text.size());
          work.step.input_bytes = bytes_before + work.step.unit.file_position;
          if (!submit(std::move(work))) return;
          if (!more) break;
        }
      } catch (...) {
        Work work;
        work.step.file = i;
        work.error = std::current_exception();
        submit(std::move(work));
        return;
      }
      bytes_before += files[i].bytes;
    }
    const std::lock_guard lock(mutex);
    all_submitted = true;
    ready.notify_one();
  }

  void work_on() {
    UnitEncoder encoder(tokenizer, encode);
    while (true) {
      Work work;
      {
        std::unique_lock lock(mutex);
        available.wait(lock, [&] { return stop || !todo.empty(); });
        if (stop) return;
        work = std::move(todo.front());
        todo.pop_front();
      }
      try {
        work.step.encoded = encoder.encode(work.step.unit);
      } catch (...) {
        work.error = std::current_exception();
      }
      std::string().swap(work.step.unit.text);
      const std::lock_guard lock(mutex);
      const bool is_next = work.index == taken;
      done.emplace(work.index, std::move(work));
      if (is_next) ready.notify_one();
    }
  }

  const Tokenizer& tokenizer;
  const EncodeOptions& encode;
  const CutOptions cut_options;
  const std::vector<TextInput>& files;
  const size_t first_file;
  const UnitCutter::Start start;

  std::mutex mutex;
  std::condition_variable room, available, ready;
  std::deque<Work> todo;
  std::map<int64_t, Work> done;
  int64_t submitted = 0, taken = 0;
  size_t in_flight = 0;
  bool all_submitted = false;
  bool stop = false;
  std::vector<std::thread> threads;
};

EncodePipeline::EncodePipeline(const Tokenizer& tokenizer, const EncodeOptions& encode,
                               const CutOptions& cut, const std::vector<TextInput>& files,
                               int64_t workers, size_t first_file, const UnitCutter::Start& start)
    : state_(std::make_unique<State>(tokenizer, encode, cut, files, first_file, start)) {
  State& state = *state_;
  // One reads and one encodes at least.
  if (start_threads(state.threads, 1, [&state] { state.read_all(); }) == 0 ||
      start_threads(state.threads, static_cast<size_t>(workers), [&state] { state.work_on(); }) ==
          0) {
    throw no_thread();
  }
}

EncodePipeline::~EncodePipeline() = default;

EncodePipeline::Next EncodePipeline::next(EncodedStep& step) {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  const auto is_ready = [&] {
    return state.done.contains(state.taken) ||
           (state.all_submitted && state.taken == state.submitted);
  };
  if (!state.ready.wait_for(lock, kPatience, is_ready)) return Next::wait;
  const auto found = state.done.find(state.taken);
  if (found == state.done.end()) return Next::end;
  State::Work work = std::move(found->second);
  state.done.erase(found);
  ++state.taken;
  state.in_flight -= work.cost;
  lock.unlock();
  state.room.notify_one();
  if (work.error) std::rethrow_exception(work.error);
  step = std::move(work.step);
  return Next::step;
}

}  // namespace mtl
