// Random histories of a job, thousands of them: nodes come, leave, fail, fall silent and say things
// at the wrong time. Whatever happens, some things hold.
#include <algorithm>
#include <csignal>
#include <random>

#include <doctest/doctest.h>

#include "launcher/controller/controller.h"
#include "support/sanitized.h"

using namespace mtl;
using namespace std::chrono_literals;

namespace {

enum class Kind { fixed, elastic, hosts };

// What has been said to whom, without the words.
struct Step {
  LinkId link;
  int kind;  // of JobMessage; -1 = the link was closed
  int64_t generation;
  bool operator==(const Step&) const = default;
};

struct Transcript {
  std::vector<Step> steps;
  int exit_code = -1;
  std::vector<std::string> codes;
  std::string problem;  // what did not hold; empty = all did
};

// One job. The nodes do what they are told some time, or something else.
class History final : public ControllerPort {
 public:
  History(Kind kind, uint32_t seed, bool with_old_frames)
      : kind_(kind), random_(seed), old_random_(~seed), with_old_frames_(with_old_frames) {
    ControllerOptions options;
    MembershipOptions& members = options.membership;
    members.min_nodes = 1 + below(3);
    members.max_nodes = members.min_nodes + (kind == Kind::fixed ? 0 : below(3));
    members.by_rank = kind == Kind::fixed;
    max_nodes_ = members.max_nodes;
    if (kind == Kind::hosts) {
      const int listed = members.max_nodes + below(2);
      // Some twice.
      for (int i = 0; i < listed; ++i) members.expected.push_back("h" + std::to_string(i / 2));
    }
    options.version = "1";
    options.grows = kind == Kind::elastic;
    options.own_position = kind == Kind::elastic ? 0 : -1;
    options.tell_nodes = kind != Kind::hosts;
    options.is_ours = below(2) == 0;
    options.max_restarts = below(3);
    options.join_timeout = 60s;
    options.grace = 30s;
    options.prepare = [this](int world, int64_t) -> std::optional<JobProgram> {
      if (unlucky_ && world % 4 == 0) {
        throw Error(Exit::config, Diagnostic{.code = "mesh.world", .what = "no such layout"});
      }
      return {};
    };
    unlucky_ = below(8) == 0;
    expected_ = members.expected;
    controller_.emplace(std::move(options), *this, now_);
    for (size_t i = 0; i < expected_.size(); ++i) positions_.push_back(static_cast<int>(i));
  }

  Transcript run() {
    const int events = 5 + below(60);
    for (int i = 0; i < events && !controller_->outcome(); ++i) {
      event();
      if (with_old_frames_) old_frame();
    }
    end();
    if (const auto& outcome = controller_->outcome()) {
      transcript_.exit_code = outcome->exit_code;
      for (const Diagnostic& one : outcome->report) transcript_.codes.push_back(one.code);
      after();
    }
    return transcript_;
  }

  // --- ControllerPort

  void send(LinkId link, JobMessage kind, int64_t generation, std::string body) override {
    transcript_.steps.push_back({link, static_cast<int>(kind), generation});
    const auto found = nodes_.find(link);
    if (found == nodes_.end() || !found->second.open) {
      return fails("something was sent to " + std::to_string(link) + ", which is gone");
    }
    Node& node = found->second;
    if (kind == JobMessage::assign) {
      if (node.refused || node.finishes > 0) fails("a node that has left has got a place");
      const auto assign = decode_assign(body);
      if (!assign || assign->roster.generation != generation) return fails("a wrong assign");
      if (generation < generation_ || generation <= node.generation) {
        fails("the generation does not grow");
      }
      if (static_cast<int>(assign->roster.nodes.size()) > max_nodes_) fails("too many nodes");
      generation_ = generation;
      node.generation = generation;
      const RosterNode& row = assign->roster.nodes[static_cast<size_t>(assign->node_rank)];
      node.next_rank = row.first_rank;
      node.ranks_left = row.slots;
      node.asked = node.stopped = false;
    }
    if (kind == JobMessage::stop) {
      if (generation != node.generation) fails("a stop of another generation");
      node.asked = true;
    }
    if (kind == JobMessage::refuse) node.refused = true;
    if (kind == JobMessage::finish && ++node.finishes > 1) fails("finished twice");
  }
  void close(LinkId link) override {
    transcript_.steps.push_back({link, -1, 0});
    Node& node = nodes_.at(link);
    node.open = false;
    // Given up when it was asked to stop, and nothing came of it.
    if (node.finishes == 0 && !node.refused && !node.asked) fails("closed without a word");
  }
  void notice(const std::string&) override { ++notices_; }
  void output(const OutputMessage&) override { fails("output that nobody has sent"); }
  void line(const std::string&) override {}

 private:
  struct Node {
    std::string host;
    int position = -1;
    bool open = true;
    bool joined = false;
    bool refused = false;
    int finishes = 0;
    int64_t generation = -1;
    int next_rank = 0;
    int ranks_left = 0;
    bool asked = false;
    bool stopped = true;
  };

  int below(int limit) { return static_cast<int>(random_() % static_cast<uint32_t>(limit)); }
  void fails(const std::string& what) {
    if (transcript_.problem.empty()) transcript_.problem = what;
  }
  void tell(LinkId link, JobMessage kind, std::string body, int64_t generation) {
    controller_->received(link, {static_cast<uint16_t>(kind), generation, std::move(body)}, 0ns,
                          now_);
  }
  Node* any(LinkId& link) {
    std::vector<LinkId> open;
    for (const auto& [id, node] : nodes_) {
      if (node.open) open.push_back(id);
    }
    if (open.empty()) return nullptr;
    link = open[static_cast<size_t>(below(static_cast<int>(open.size())))];
    return &nodes_.at(link);
  }

  void event() {
    LinkId link = 0;
    const int dice = below(100);
    if (dice < 25) return comes();
    if (dice < 35) return pass(std::chrono::milliseconds(below(20'000)));
    if (dice < 36) return controller_->interrupt(SIGINT, now_);
    if (dice < 38) return fails_to_come();
    Node* node = any(link);
    if (node == nullptr) return;
    if (dice < 45) return lose(link);
    if (dice < 52) {
      const int signal = below(2) == 0 ? SIGTERM : SIGINT;
      return tell(link, JobMessage::interrupted, encode(InterruptedMessage{signal}),
                  node->generation);
    }
    if (dice < 54) {  // mostly what it may not say any more
      if (!node->joined) node->refused = true;
      tell(link, JobMessage::problems, encode(ProblemsMessage{4, {{.code = "x", .what = "y"}}}), 0);
      return;
    }
    if (dice < 56) return hello(link, "2");
    if (dice < 58) return hello(link, "1");
    if (dice < 62) return rank_ends(link, 1);
    if (dice < 70) return rank_ends(link, 0);
    if (dice < 72) return stops(link, below(6) == 0);
    stops(link, false);  // mostly they obey
  }

  void comes() {
    const LinkId link = next_link_++;
    if (kind_ == Kind::hosts) {
      if (positions_.empty()) return;
      Node& node = nodes_[link];
      node.position = positions_.back();
      positions_.pop_back();
      node.host = expected_[static_cast<size_t>(node.position)];
      NodeJob job;
      job.position = node.position;
      controller_->expect(link, node.host, job);
      if (below(8) > 0) hello(link, below(20) == 0 ? "2" : "1");
      return;
    }
    if (kind_ == Kind::elastic && below(4) == 0)
      nodes_[link].position = nodes_.size() == 1 ? 0 : -1;
    nodes_[link].host = "m" + std::to_string(below(6));
    hello(link, below(20) == 0 ? "2" : "1");
  }
  void hello(LinkId link, const std::string& version) {
    Node& node = nodes_.at(link);
    HelloMessage hello{.version = version, .host = node.host, .offer = {}};
    NodeOffer offer;
    offer.host = node.host;
    offer.slots = 1 + below(2);
    offer.position = node.position;
    offer.addresses = {"10.0.0.1"};
    if (kind_ == Kind::hosts) {
      offer.key = "host " + std::to_string(node.position);
      tell(link, JobMessage::hello, encode(hello), 0);
      if (nodes_.at(link).open && (nodes_.at(link).joined || below(8) > 0)) {
        nodes_.at(link).joined = true;
        tell(link, JobMessage::join, encode(offer), 0);
      }
      return;
    }
    offer.rank = kind_ == Kind::fixed ? below(max_nodes_ + 1) : -1;
    offer.key = kind_ == Kind::fixed ? "rank " + std::to_string(offer.rank) : std::to_string(link);
    hello.offer = offer;
    node.joined = true;  // or refused
    tell(link, JobMessage::hello, encode(hello), 0);
  }
  void fails_to_come() {
    if (positions_.empty()) return;
    const int position = positions_.back();
    positions_.pop_back();
    controller_->host_failed(position, {.code = "ssh.connect", .what = "refused"}, now_);
  }

  void rank_ends(LinkId link, int exit_code) {
    Node& node = nodes_.at(link);
    if (node.stopped || node.ranks_left == 0) return;
    --node.ranks_left;
    WorkerEnd end;
    end.rank = node.next_rank++;
    end.stopped_by_us = node.asked;
    end.exit_code = exit_code;
    if (node.asked && exit_code == 0) end.exit_code = std::vector{0, 75, 143}[below(3) % 3];
    // Far enough from now that the order is the same whenever this runs.
    end.when = began_ + (below(3) == 0 ? -1h : 1h);
    tell(link, JobMessage::ended, encode(end), node.generation);
  }
  void stops(LinkId link, bool with_error) {
    while (!controller_->outcome() && nodes_.at(link).open && nodes_.at(link).ranks_left > 0 &&
           !nodes_.at(link).stopped) {
      const int left = nodes_.at(link).ranks_left;
      rank_ends(link, below(12) == 0 ? 1 : 0);
      if (nodes_.at(link).ranks_left == left) break;
    }
    Node& node = nodes_.at(link);
    if (!node.open || node.stopped) return;
    node.stopped = true;
    StoppedMessage stopped;
    if (with_error) {
      stopped.errors = {{.code = "launch.program_missing", .what = "no such program"}};
      stopped.exit_code = 127;
    }
    tell(link, JobMessage::stopped, encode(stopped), node.generation);
  }
  void lose(LinkId link) {
    nodes_.at(link).open = false;
    controller_->lost(link, below(2) == 0 ? LinkEvent::silent : LinkEvent::closed, "gone", now_);
  }
  void pass(std::chrono::milliseconds time) {
    now_ += time;
    controller_->tick(now_);
  }

  // Of workers that are long gone, and the end of links that we have closed.
  void old_frame() {
    if (nodes_.empty()) return;
    auto node = nodes_.begin();
    std::advance(node, old_random_() % nodes_.size());
    const auto& [link, state] = *node;
    if (!state.open) return controller_->lost(link, LinkEvent::closed, "gone", now_);
    WorkerEnd end;
    end.exit_code = 99;
    end.when = began_ - 2h;
    StoppedMessage stopped;
    stopped.errors = {{.code = "old", .what = "old"}};
    stopped.exit_code = 99;
    const int64_t generation = generation_ - 1 - static_cast<int64_t>(old_random_() % 2);
    if (generation < 0) return;
    switch (old_random_() % 3) {
      case 0:
        return tell(link, JobMessage::ended, encode(end), generation);
      case 1:
        return tell(link, JobMessage::stopped, encode(stopped), generation);
      default:
        return tell(link, JobMessage::output, encode(OutputMessage{0, false, "old\n"}), generation);
    }
  }

  // Nothing more comes, in one of the ways in which that may be.
  void end() {
    const int way = below(3);
    for (int i = 0; i < 300 && !controller_->outcome(); ++i) {
      if (with_old_frames_) old_frame();
      if (controller_->outcome()) break;
      std::vector<LinkId> open;
      for (const auto& [link, node] : nodes_) {
        if (node.open) open.push_back(link);
      }
      if (way == 0) {
        // All are lost.
        for (const LinkId link : open) {
          if (nodes_.at(link).open && !controller_->outcome()) lose(link);
        }
      } else if (way == 1) {
        // They are asked to stop, and are deaf.
        if (i == 0) controller_->interrupt(SIGTERM, now_);
      } else {
        // They end, well or not, and nobody comes in the place of one that left.
        for (const LinkId link : open) {
          if (nodes_.at(link).open && !controller_->outcome()) stops(link, false);
        }
      }
      if (controller_->outcome()) break;
      const auto next = controller_->next_tick(now_);
      if (next) {
        now_ = std::max(now_, *next);
        controller_->tick(now_);
      } else if (way != 2) {
        return fails("nothing would ever happen again");
      }
    }
    if (!controller_->outcome()) fails("the job has no end");
  }

  void after() {
    for (const auto& [link, node] : nodes_) {
      if (node.open) fails("a link stays open");
      if (node.finishes > 1) fails("finished twice");
    }
    const size_t said = transcript_.steps.size();
    const int notices = notices_;
    const auto outcome = controller_->outcome()->exit_code;
    const int64_t generation = controller_->generation();
    for (const auto& [link, node] : nodes_) {
      tell(link, JobMessage::interrupted, encode(InterruptedMessage{SIGTERM}), generation);
      tell(link, JobMessage::stopped, encode(StoppedMessage{}), generation);
      controller_->lost(link, LinkEvent::closed, "gone", now_);
    }
    controller_->interrupt(SIGINT, now_);
    controller_->tick(now_ + 1h);
    if (transcript_.steps.size() != said || notices_ != notices ||
        controller_->outcome()->exit_code != outcome) {
      fails("something happened after the end");
    }
    if (controller_->next_tick(now_)) fails("something would happen after the end");
  }

  const Kind kind_;
  std::mt19937 random_, old_random_;
  const bool with_old_frames_;
  std::optional<Controller> controller_;
  std::chrono::steady_clock::time_point now_ = std::chrono::steady_clock::now();
  const std::chrono::system_clock::time_point began_ = std::chrono::system_clock::now();
  Transcript transcript_;
  std::map<LinkId, Node> nodes_;
  std::vector<std::string> expected_;
  std::vector<int> positions_;  // of hosts that nobody has heard of
  LinkId next_link_ = 1;
  int64_t generation_ = -1;
  int max_nodes_ = 1;
  int notices_ = 0;
  bool unlucky_ = false;
};

}  // namespace

TEST_CASE("whatever happens to a job it ends and everybody is told once") {
  std::map<int, int> exit_codes;
  int64_t most = 0;
  for (const Kind kind : {Kind::fixed, Kind::elastic, Kind::hosts}) {
    for (uint32_t seed = 0; seed < (test::kSanitized ? 300 : 1'500); ++seed) {
      CAPTURE(static_cast<int>(kind));
      CAPTURE(seed);
      const Transcript plain = History(kind, seed, false).run();
      REQUIRE(plain.problem == "");
      // What older generations still say changes nothing at all.
      const Transcript with_old = History(kind, seed, true).run();
      REQUIRE(with_old.problem == "");
      REQUIRE(with_old.steps == plain.steps);
      REQUIRE(with_old.exit_code == plain.exit_code);
      REQUIRE(with_old.codes == plain.codes);
      ++exit_codes[plain.exit_code];
      for (const Step& step : plain.steps) most = std::max(most, step.generation);
    }
  }
  // The histories are worth something only if they go everywhere.
  for (const int code : {0, 1, 3, 4, 7, 75, 127, 130, 143}) {
    CAPTURE(code);
    CHECK(exit_codes[code] > 0);
  }
  CHECK(most >= 5);
}
