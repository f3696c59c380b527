#include "runtime/selftest.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <string_view>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/version.h"
#include "rendezvous/exchange.h"
#include "runtime/comm/shm/host.h"
#include "runtime/device/device.h"
#include "runtime/selftest_checks.h"
#include "runtime/worker_environment.h"

namespace mtl {

namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

double since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

Error wrong_loss(std::string what, const char* help) {
  return Error(Exit::run_failed, {.code = "selftest.loss", .what = std::move(what), .help = help});
}

Json speed(const LinkSpeed& of) {
  return {{"latency_s", of.latency_s}, {"bytes_per_s", of.bytes_per_s}, {"link_s", of.link_s}};
}

std::string word_key(const char* stage, int rank) {
  return fmt::format("selftest/{}/{}", stage, rank);
}

struct Fault {
  std::string stage, kind = "wrong";
  int rank = -1;
};

Fault read_fault() {
  const char* text = std::getenv("MTL_TEST_FAULT");
  const std::string all = text != nullptr ? text : "";
  const size_t first = all.find(':');
  if (first == std::string::npos) return {};
  Fault fault{.stage = all.substr(0, first), .rank = std::atoi(all.c_str() + first + 1)};
  const size_t second = all.find(':', first + 1);
  if (second != std::string::npos) fault.kind = all.substr(second + 1);
  return fault;
}

// --- a rank

class RankTest {
 public:
  RankTest(const WorkerEnvironment& own, const SelftestOptions& options)
      : own_(own), options_(options), fault_(read_fault()) {}

  void run(const std::function<std::shared_ptr<Store>()>& join) {
    const std::function<Json()> bodies[] = {
        [&] { return spawn(join); }, [&] { return meet(); },   [&] { return network(); },
        [&] { return train(); },     [&] { return clocks(); },
    };
    static_assert(std::size(bodies) == std::size(kSelftestStages));
    for (size_t i = 0; i < options_.stages; ++i) stage(i, bodies[i]);
  }

 private:
  struct Node {
    int first = 0;
    std::string place;  // ranks of the same one share memory
  };

  bool is_wrong(const char* stage) const {
    return fault_.stage == stage && fault_.rank == own_.rank && fault_.kind == "wrong";
  }

  void stage(size_t index, const std::function<Json()>& body) {
    const char* name = kSelftestStages[index];
    Json word;
    try {
      if (fault_.stage == name && fault_.rank == own_.rank) {
        if (fault_.kind == "exit") _exit(9);
        while (fault_.kind == "sleep") pause();
      }
      word["found"] = body();
    } catch (const Error& error) {
      // Nobody could be told: the launcher tells our last words.
      if (!store_) throw;
      if (world_) world_->leave();
      const Diagnostic& why = error.diagnostics().front();
      word = {{"exit", static_cast<int>(error.exit())},
              {"code", why.code},
              {"what", why.what},
              {"notes", why.notes},
              {"help", why.help}};
    }
    store_->set(word_key(name, own_.rank), word.dump());
    // Nothing comes after the last one: who waited here might find that rank 0 is gone.
    if (index + 1 == options_.stages && !word.contains("code")) return;
    read_nodes(Json::parse(store_->get(word_key(name, -1), options_.timeout + kUmpire)));
  }

  Json spawn(const std::function<std::shared_ptr<Store>()>& join) {
    const auto begin = Clock::now();
    store_ = join();
    join_s_ = since(begin);
    const shm::Identity identity = shm::Identity::own();
    const char* transport = std::getenv("MTL_COMM");
    const bool tcp = transport != nullptr && std::string_view(transport) == "tcp";
    const bool named = static_cast<int>(options_.hosts.size()) == own_.nodes;
    const char* gpus = std::getenv("CUDA_VISIBLE_DEVICES");
    return {
        {"host", named ? options_.hosts[static_cast<size_t>(own_.node)] : identity.host},
        {"node", own_.node},
        {"local_rank", own_.local_rank},
        {"local_world", own_.local_world},
        {"pid", getpid()},
        {"device", make_cpu_device()->description()},
        {"visible_gpus", gpus != nullptr ? gpus : ""},
        {"cores", shm::count_cpus(identity.cpus)},
        {"omp_threads", own_.omp_threads},
        {"version", version()},
        {"place", tcp ? std::to_string(own_.node)
                      : fmt::format("{} {} {}", identity.boot, identity.pid_namespace, geteuid())}};
  }

  Json meet() {
    const auto begin = Clock::now();
    exchange(*store_, "selftest/barrier", own_.rank, own_.world, "", patience_);
    return {{"join_s", join_s_}, {"barrier_s", since(begin)}};
  }

  void read_nodes(const Json& nodes) {
    if (!nodes_.empty()) return;
    for (const Json& node : nodes) nodes_.push_back({node["first"], node["place"]});
  }

  Json network() {
    if (own_.world == 1) {
      world_ = make_self_world();
      return Json::object();
    }
    WorldOptions options = world_options(own_, read_token(own_.token_fd));
    options.timeout = patience_;
    world_ = make_cpu_world(*store_, options);
    // Ranks by place: those of nodes in the same one are together.
    std::vector<std::vector<int>> places;
    std::vector<std::string> names;
    std::vector<int> everybody, leaders, here;
    for (size_t n = 0; n < nodes_.size(); ++n) {
      const auto found = std::find(names.begin(), names.end(), nodes_[n].place);
      const auto place = static_cast<size_t>(found - names.begin());
      if (found == names.end()) {
        names.push_back(nodes_[n].place);
        places.emplace_back();
        leaders.push_back(nodes_[n].first);
      }
      const int end = n + 1 < nodes_.size() ? nodes_[n + 1].first : own_.world;
      for (int r = nodes_[n].first; r < end; ++r) {
        places[place].push_back(r);
        everybody.push_back(r);
        if (r == own_.rank) here.assign(1, static_cast<int>(place));
      }
    }
    here = places[static_cast<size_t>(here.at(0))];
    const std::unique_ptr<Communicator> all = world_->group(everybody);
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32}) {
      verify_operations(*all, dtype, dtype == DType::f32 && is_wrong("network"));
    }
    Json found = {{"place", here.front()}};
    if (here.size() > 1) found["within"] = speed(measure_group(*world_->group(here), false));
    all->barrier();
    if (leaders.size() > 1 && here.front() == own_.rank) {
      found["across"] = speed(measure_group(*world_->group(leaders), true));
    }
    all->barrier();
    return found;
  }

  Json train() {
    const std::unique_ptr<CommWorld> self = make_self_world();
    const std::vector<double> alone = tiny_losses(*self, own_.world, 1);
    if (!(alone.back() < 0.9 * alone.front())) {
      throw wrong_loss(
          fmt::format("in {} steps alone its loss went from {:.4f} to {:.4f}: it does not "
                      "learn",
                      alone.size(), alone.front(), alone.back()),
          "the arithmetic of this host is wrong: try MTL_CPU_ISA=avx2, check its memory");
    }
    double difference = 0;
    for (const int tp : {1, 2}) {
      if (own_.world == 1 || own_.world % tp != 0) continue;
      std::vector<double> together = tiny_losses(*world_, own_.world, tp);
      if (is_wrong("train")) together.back() += 0.01;
      for (size_t step = 0; step < alone.size(); ++step) {
        const double off = std::abs(together[step] - alone[step]) / alone[step];
        difference = std::max(difference, off);
        if (off <= kBound) continue;
        throw wrong_loss(
            fmt::format("with tp={} dp={} the loss of step {} is {:.6f}, of this rank "
                        "alone {:.6f}: {:.1e} apart, where another order of sums gives at "
                        "most {:.0e}",
                        tp, own_.world / tp, step + 1, together[step], alone[step], off, kBound),
            "this host computes something else than the others: compare the output of mtl "
            "env on them, try MTL_CPU_ISA=avx2, check its memory");
      }
    }
    world_.reset();
    return {{"steps", alone.size()},
            {"first_loss", alone.front()},
            {"last_loss", alone.back()},
            {"difference", difference}};
  }

  // Rank 0 asks the first rank of every other node for its time; it was halfway between question
  // and answer.
  Json clocks() {
    const auto now = [] {
      const auto time = std::chrono::system_clock::now().time_since_epoch();
      return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
    };
    const auto key = [](const char* what, int rank, int round) {
      return fmt::format("selftest/{}/{}/{}", what, rank, round);
    };
    Json found = Json::object();
    for (const Node& node : nodes_) {
      const int r = node.first;
      if (r == 0 || (own_.rank != 0 && own_.rank != r)) continue;
      double shortest = INFINITY;
      for (int round = 0; round < 3; ++round) {
        if (own_.rank == r) {
          store_->get(key("ask", r, round), patience_);
          store_->set(key("time", r, round),
                      std::to_string(now() + (is_wrong("clocks") ? 5'000'000'000 : 0)));
          continue;
        }
        const int64_t asked = now();
        store_->set(key("ask", r, round), "");
        const int64_t theirs = std::stoll(store_->get(key("time", r, round), patience_));
        const int64_t answered = now();
        if (static_cast<double>(answered - asked) >= shortest) continue;
        shortest = static_cast<double>(answered - asked);
        found["of_rank"][std::to_string(r)] =
            static_cast<double>(theirs - asked - (answered - asked) / 2) / 1e9;
      }
    }
    return found;
  }

  static constexpr double kBound = 1e-4;              // docs/explain/parallelism.md
  static constexpr std::chrono::seconds kUmpire{10};  // for its own part
  const WorkerEnvironment& own_;
  const SelftestOptions& options_;
  // With others: who waits in vain is to say so before the umpire calls it late itself.
  const milliseconds patience_ = options_.timeout * 2 / 3;
  const Fault fault_;
  std::shared_ptr<Store> store_;
  std::unique_ptr<CommWorld> world_;
  std::vector<Node> nodes_;
  double join_s_ = 0;
};

// --- the umpire

class Umpire {
 public:
  Umpire(const WorkerEnvironment& own, const SelftestOptions& options)
      : own_(own), options_(options) {}

  void run(const std::function<std::shared_ptr<Store>()>& join) {
    const char* current = kSelftestStages[0];
    begin_ = Clock::now();
    try {
      const std::shared_ptr<Store> store = join();
      for (size_t i = 0; i < options_.stages; ++i) {
        const char* stage = current = kSelftestStages[i];
        begin_ = Clock::now();
        std::vector<Json> words = collect(*store, stage);
        Json found = Json::array();
        for (const Json& word : words) {
          found.push_back(word.contains("found") ? word["found"] : Json());
        }
        if (spawned_.empty()) spawned_ = found;
        judge(stage, words);
        // Before the next stage, whose line has to come after it.
        say({{"stage", stage}, {"ok", true}, {"seconds", since(begin_)}, {"ranks", found}});
        store->set(word_key(stage, -1), nodes().dump());
      }
    } catch (const Error& error) {
      end(current, 0, static_cast<int>(error.exit()), error.diagnostics().front());
    }
  }

 private:
  // By rank; null from who does not come in time.
  std::vector<Json> collect(Store& store, const char* stage) {
    std::vector<Json> words(static_cast<size_t>(own_.world));
    for (int r = 0; r < own_.world; ++r) {
      const auto left =
          std::chrono::duration_cast<milliseconds>(begin_ + options_.timeout - Clock::now());
      try {
        words[static_cast<size_t>(r)] =
            Json::parse(store.get(word_key(stage, r), std::max(left, milliseconds(0))));
      } catch (const Error& error) {
        if (error.exit() != Exit::timeout) throw;
      }
    }
    return words;
  }

  // Who is to blame: an error of its own, then who did not come, then who waited in vain. What
  // another rank's failure did to a rank says nothing.
  void judge(const char* stage, const std::vector<Json>& words) {
    std::vector<int> missing;
    int failed = -1, waited = -1, suffered = -1;
    for (int r = 0; r < own_.world; ++r) {
      const Json& word = words[static_cast<size_t>(r)];
      if (word.is_null()) missing.push_back(r);
      if (!word.contains("code")) continue;
      int& kind = word["code"] == "comm.peer_lost"                  ? suffered
                  : word["exit"] == static_cast<int>(Exit::timeout) ? waited
                                                                    : failed;
      if (kind < 0) kind = r;
    }
    if (failed >= 0) end(stage, failed, words[static_cast<size_t>(failed)]);
    if (!missing.empty()) {
      hang(stage, missing, waited < 0 ? Json() : words[static_cast<size_t>(waited)]);
    }
    for (const int r : {waited, suffered}) {
      if (r >= 0) end(stage, r, words[static_cast<size_t>(r)]);
    }
  }

  void hang(const char* stage, const std::vector<int>& missing, const Json& other) {
    std::string ranks;
    for (const int r : missing) {
      if (ranks.size() < 200) ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", name_of(r));
    }
    Diagnostic why{.code = "selftest.timeout",
                   .what = fmt::format("{} did not come within {:g} s", ranks,
                                       static_cast<double>(options_.timeout.count()) / 1000)};
    if (!other.is_null()) why.notes.push_back(other["what"]);
    const int r = missing.front();
    if (const Json known = spawned(r); !known.is_null()) {
      const int pid = known["pid"];
      why.help = fmt::format(
          "see what it waits for, on {}: gdb -p {} -batch -ex bt, or cat "
          "/proc/{}/stack",
          host_of(r), pid, pid);
    } else {
      why.help =
          "look on its host whether mtl starts there at all (mtl version), and whether it "
          "reaches the rendezvous at " +
          own_.address;
    }
    why.what = fmt::format("{}: {}", stage, why.what);
    end(stage, r, static_cast<int>(Exit::timeout), why);
  }

  void end(const char* stage, int rank, const Json& word) {
    Diagnostic why{
        .code = word["code"],
        .what = fmt::format("{}: {}: {}", stage, name_of(rank), word["what"].get<std::string>()),
        .notes = word["notes"],
        .help = word["help"]};
    end(stage, rank, word["exit"], why);
  }

  [[noreturn]] void end(const char* stage, int rank, int exit, const Diagnostic& why) {
    const bool kept =
        exit == static_cast<int>(Exit::timeout) || exit == static_cast<int>(Exit::environment);
    const int code = kept ? exit : static_cast<int>(Exit::run_failed);
    say({{"stage", stage},
         {"ok", false},
         {"seconds", since(begin_)},
         {"code", why.code},
         {"what", why.what},
         {"notes", why.notes},
         {"help", why.help},
         {"rank", rank},
         {"host", host_of(rank)},
         {"exit", code}});
    fmt::print(stderr, "{}", render(why));
    std::fflush(stderr);
    // The other threads of this process may hang.
    _exit(code);
  }

  // What it said of itself; null if it has not come at all.
  Json spawned(int rank) const {
    return static_cast<size_t>(rank) < spawned_.size() ? spawned_[static_cast<size_t>(rank)]
                                                       : Json();
  }
  // Also of a rank that has not come, by others of its node; or by the only node of which nobody
  // has come. Empty = unknown.
  std::string host_of(int rank) const {
    std::vector<std::string> unseen = options_.hosts;
    for (int r = 0; r < static_cast<int>(spawned_.size()); ++r) {
      const Json one = spawned(r);
      if (one.is_null()) continue;
      const int first = r - one["local_rank"].get<int>();
      if (first <= rank && rank < first + one["local_world"].get<int>()) return one["host"];
      std::erase(unseen, one["host"].get<std::string>());
    }
    return unseen.size() == 1 ? unseen.front() : "";
  }
  std::string name_of(int rank) const {
    const std::string host = host_of(rank);
    return fmt::format("rank {}{}", rank, host.empty() ? "" : " on " + host);
  }

  // The first rank of each node.
  Json nodes() const {
    Json nodes = Json::array();
    for (size_t r = 0; r < spawned_.size(); ++r) {
      if (spawned_[r]["local_rank"] != 0) continue;
      nodes.push_back({{"first", r}, {"place", spawned_[r]["place"]}});
    }
    return nodes;
  }

  void say(const Json& record) const {
    const std::string line = record.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
    const int fd = own_.progress_fd >= 0 ? own_.progress_fd : STDOUT_FILENO;
    for (size_t sent = 0; sent < line.size();) {
      const ssize_t n = write(fd, line.data() + sent, line.size() - sent);
      if (n < 0 && errno != EINTR) return;
      sent += static_cast<size_t>(std::max<ssize_t>(n, 0));
    }
  }

  const WorkerEnvironment& own_;
  const SelftestOptions& options_;
  Clock::time_point begin_;
  Json spawned_;  // what the ranks found when they came
};

}  // namespace

size_t selftest_stages_until(std::string_view last) {
  const auto found = std::find(std::begin(kSelftestStages), std::end(kSelftestStages), last);
  const auto index = static_cast<size_t>(found - std::begin(kSelftestStages));
  return std::min(index + 1, std::size(kSelftestStages));
}

Exit run_selftest(const SelftestOptions& options) {
  const WorkerEnvironment own = read_worker_environment();
  if (own.rank_threads > 0) {
    throw Error(Exit::environment,
                {.code = "worker.environment",
                 .what = "mtl test has a process per rank and does not know ranks in threads "
                         "(MTL_RANK_THREADS)",
                 .help = "a run with launch.spawn=threads needs no set-up to be tested: it is one "
                         "process"});
  }
  // Who cannot join is to say so before the umpire calls it late.
  std::function<std::shared_ptr<Store>()> join = [&]() -> std::shared_ptr<Store> {
    return join_store(own, read_token(own.token_fd), options.timeout * 2 / 3);
  };
  if (own.world == 1) {
    join = [store = std::shared_ptr<Store>(make_local_store())] { return store; };
  }
  Umpire umpire(own, options);
  std::thread beside;
  if (own.rank == 0) beside = std::thread([&] { umpire.run(join); });
  try {
    RankTest(own, options).run(join);
  } catch (const Error& error) {
    // The umpire's thread may wait for long; the launcher wants to know now.
    fmt::print(stderr, "{}", error.what());
    std::fflush(stderr);
    _exit(static_cast<int>(error.exit()));
  } catch (...) {
    if (beside.joinable()) beside.detach();
    throw;
  }
  if (beside.joinable()) beside.join();
  return Exit::done;
}

}  // namespace mtl
