// A controller without links: told what happens, watched for what it says.
#pragma once

#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "launcher/controller/controller.h"

namespace mtl::test {

using namespace std::chrono_literals;

struct ToldMessage {
  LinkId link;
  JobMessage kind;
  int64_t generation;
  std::string body;
};

class ToldPort final : public ControllerPort {
 public:
  void send(LinkId link, JobMessage kind, int64_t generation, std::string body) override {
    said.push_back({link, kind, generation, std::move(body)});
  }
  void close(LinkId link) override { closed.push_back(link); }
  void notice(const std::string& line) override { notices.push_back(line); }
  void output(const OutputMessage& message) override { outputs.push_back(message.text); }
  void line(const std::string&) override {}

  int count(JobMessage kind) const {
    int found = 0;
    for (const ToldMessage& one : said) found += one.kind == kind ? 1 : 0;
    return found;
  }
  const ToldMessage* last(JobMessage kind, LinkId link) const {
    const ToldMessage* found = nullptr;
    for (const ToldMessage& one : said) {
      if (one.kind == kind && one.link == link) found = &one;
    }
    return found;
  }
  std::vector<ToldMessage> said;
  std::vector<LinkId> closed;
  std::vector<std::string> notices, outputs;
};

// A job of `nodes` nodes with two ranks each, by machine_rank.
class ToldJob {
 public:
  explicit ToldJob(int min, int max, int max_restarts = 0, bool elastic = false,
                   bool is_ours = false, bool listed = false, bool total_said = false) {
    ControllerOptions options;
    if (!elastic && !listed) options.ranks = 2 * max;
    options.total_said = total_said;
    options.membership.min_nodes = min;
    options.membership.max_nodes = max;
    options.membership.by_rank = !elastic;
    options.membership.last_call = 10s;
    options.version = "1";
    options.grows = elastic;
    options.is_ours = is_ours;
    options.own_position = 0;
    options.max_restarts = max_restarts;
    options.join_timeout = 60s;
    options.grace = 30s;
    options.prepare = [this](int world, int64_t) -> std::optional<JobProgram> {
      worlds.push_back(world);
      if (world > legal_world || world < least_world) {
        throw Error(Exit::config, Diagnostic{.code = "mesh.world", .what = "no such layout"});
      }
      return {};
    };
    elastic_ = elastic;
    if (listed) {
      options.membership.expected = {"m0", "m1", "m2"};
      options.listed_at = {{"hosts", 1, 1}, {"hosts", 2, 1}, {"hosts", 4, 1}};
      options.membership.by_rank = false;
    }
    controller.emplace(std::move(options), port, now);
  }

  // A host of the list m0, m1, m2 (`listed`), in that place.
  void join_listed(int position, const std::string& machine, bool on_gpus) {
    NodeJob job;
    job.position = position;
    job.host = fmt::format("m{}", position);
    controller->expect(position + 1, job.host, job);
    tell(position + 1, JobMessage::hello, encode(HelloMessage{"1", job.host, {}}), 0);
    NodeOffer offer;
    offer.host = offer.key = job.host;
    offer.slots = 2;
    offer.position = position;
    offer.addresses = {"10.0.0.1"};
    offer.machine = machine;
    offer.on_gpus = on_gpus;
    tell(position + 1, JobMessage::join, encode(offer), 0);
  }
  void join(int node) { join(node, node); }
  void join(LinkId link, int node) {
    NodeOffer offer;
    offer.host = fmt::format("m{}", node);
    offer.key = offer.host;
    offer.slots = 2;
    offer.rank = elastic_ ? -1 : node;
    offer.position = node == 0 ? 0 : -1;
    offer.addresses = {fmt::format("10.0.0.{}", node)};
    offer.port = 1000;
    tell(link, JobMessage::hello, encode(HelloMessage{"1", offer.host, offer}), 0);
  }
  void tell(LinkId link, JobMessage kind, std::string body, int64_t generation) {
    controller->received(link, {static_cast<uint16_t>(kind), generation, std::move(body)}, 0ns,
                         now);
  }
  void ended(int node, int rank, int exit_code, bool stopped = false,
             std::chrono::milliseconds when = 0ms) {
    WorkerEnd end;
    end.rank = rank;
    end.local_rank = rank % 2;
    end.pid = 100 + rank;
    end.exit_code = exit_code;
    end.signal = exit_code > 128 ? exit_code - 128 : 0;
    end.stopped_by_us = stopped;
    end.when = std::chrono::system_clock::now() + when;
    tell(node, JobMessage::ended, encode(end), controller->generation());
  }
  void stopped(int node) {
    tell(node, JobMessage::stopped, encode(StoppedMessage{}), controller->generation());
  }
  // A signal arrived at the node.
  void signalled(int node, int signal) { signalled(node, signal, std::chrono::milliseconds(0)); }
  void signalled(int node, int signal, std::chrono::milliseconds when) {
    tell(node, JobMessage::interrupted,
         encode(InterruptedMessage{signal, std::chrono::system_clock::now() + when}),
         controller->generation());
  }
  std::optional<FinishMessage> finished(int node) const {
    const ToldMessage* last = port.last(JobMessage::finish, node);
    return last != nullptr ? decode_finish(last->body) : std::nullopt;
  }
  // All ranks of a node obey and end.
  void obey(int node) {
    ended(node, 2 * node, 143, true);
    ended(node, 2 * node + 1, 143, true);
    stopped(node);
  }
  void pass(std::chrono::milliseconds time) {
    now += time;
    controller->tick(now);
  }
  const JobOutcome& outcome() {
    REQUIRE(controller->outcome());
    return *controller->outcome();
  }

  ToldPort port;
  std::optional<Controller> controller;
  std::chrono::steady_clock::time_point now = std::chrono::steady_clock::now();
  std::vector<int> worlds;
  int legal_world = 1000, least_world = 0;

 private:
  bool elastic_ = false;
};

}  // namespace mtl::test
