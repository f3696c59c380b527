// Membership: ready or not, who takes which place. And the roster's bytes.
#include "rendezvous/membership.h"

#include <algorithm>
#include <rapidcheck.h>
#include <set>

#include <doctest/doctest.h>

using namespace mtl;
using namespace std::chrono_literals;
using Time = Membership::Time;

namespace {

const Time kStart = Time(std::chrono::hours(1000));

NodeOffer offer(const std::string& host, int slots = 2, int rank = -1, int position = -1) {
  NodeOffer made;
  made.host = host;
  made.key = "key of " + host;
  made.slots = slots;
  made.rank = rank;
  made.position = position;
  made.addresses = {"10.0.0.1", "fd00::1"};
  made.port = 29500;
  return made;
}

MembershipOptions between(int least, int most) {
  MembershipOptions options;
  options.min_nodes = least;
  options.max_nodes = most;
  return options;
}

std::vector<std::string> hosts_of(const Roster& roster) {
  std::vector<std::string> hosts;
  for (const RosterNode& node : roster.nodes) hosts.push_back(node.host);
  return hosts;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("all that can come are here: ready at once - fewer wait for the last call") {
  MembershipOptions options = between(2, 4);
  options.last_call = 10s;
  Membership members(options);
  CHECK_FALSE(members.ready(kStart));
  CHECK(members.missing() == "2 more nodes");
  CHECK_FALSE(members.join(1, offer("a"), kStart));
  CHECK(members.missing() == "1 more node");
  CHECK_FALSE(members.ready(kStart + 1h));
  CHECK_FALSE(members.next_change(kStart));
  CHECK_FALSE(members.join(2, offer("b"), kStart + 1s));
  CHECK(members.missing() == "up to 2 more nodes");
  CHECK_FALSE(members.ready(kStart + 10'999ms));
  REQUIRE(members.next_change(kStart + 2s));
  CHECK(*members.next_change(kStart + 2s) == kStart + 11s);
  CHECK(members.ready(kStart + 11s));
  CHECK_FALSE(members.next_change(kStart + 11s));
  CHECK_FALSE(members.join(3, offer("c"), kStart + 5s));
  CHECK_FALSE(members.ready(kStart + 14s));
  CHECK_FALSE(members.join(4, offer("d"), kStart + 6s));
  CHECK(members.ready(kStart + 6s));
}

TEST_CASE("after a loss those who are left go on at once if they are enough") {
  Membership members(between(2, 3));
  for (int i = 0; i < 3; ++i) members.join(i + 1, offer(std::string(1, char('a' + i))), kStart);
  CHECK(members.assign().generation == 0);
  members.leave(2, kStart + 1s);
  CHECK(members.ready(kStart + 1s));
  CHECK(hosts_of(members.assign()) == Names{"a", "c"});
  members.leave(1, kStart + 2s);
  CHECK_FALSE(members.ready(kStart + 1h));
  CHECK(members.missing() == "1 more node");
  CHECK(members.present() == 1);
  CHECK(members.possible());
}

TEST_CASE("expected hosts: known bad is as good as here and too few left is impossible") {
  MembershipOptions options = between(3, 4);
  options.expected = {"m1", "m2", "m3", "m4"};
  Membership members(options);
  CHECK(members.missing() == "m1, m2, m3, m4");
  members.join(1, offer("m1", 2, -1, 0), kStart);
  members.join(2, offer("m2", 2, -1, 1), kStart);
  // Its own name is another one than in our list, but we know whom we asked.
  members.join(3, offer("m3.lan", 2, -1, 2), kStart);
  CHECK(members.missing() == "m4");
  CHECK_FALSE(members.ready(kStart));
  CHECK(members.possible());
  SUBCASE("the fourth refuses") {
    members.will_not_come(3);
    CHECK(members.ready(kStart));
    CHECK(members.possible());
    CHECK(hosts_of(members.assign()) == Names{"m1", "m2", "m3.lan"});
    members.leave(2, kStart);
    CHECK_FALSE(members.possible());
    CHECK(members.missing() == "m2, m4");
    // It comes all the same.
    members.join(9, offer("m4", 2, -1, 3), kStart);
    CHECK(members.possible());
    CHECK(members.ready(kStart));
  }
  SUBCASE("two more are lost") {
    members.will_not_come(3);
    members.will_not_come(-1);
    members.will_not_come(4);
    members.leave(1, kStart);
    CHECK_FALSE(members.possible());
    CHECK_FALSE(members.ready(kStart + 1h));
  }
  SUBCASE("all four") {
    members.join(4, offer("m4", 2, -1, 3), kStart);
    CHECK(members.ready(kStart));
    CHECK(members.missing().empty());
  }
}

TEST_CASE("expected hosts: one that is listed twice may come once and fail once") {
  MembershipOptions options = between(2, 3);
  options.expected = {"m1", "m1", "m2"};
  Membership members(options);
  members.will_not_come(0);
  NodeOffer second = offer("m1", 2, -1, 1);
  members.join(1, second, kStart);
  CHECK(members.awaited() == 1);
  CHECK(members.missing() == "m2");
  // What came is lost: the other of that name has no part in it.
  members.leave(1, kStart);
  members.will_not_come(1);
  CHECK(members.awaited() == 1);
  CHECK_FALSE(members.possible());
}

TEST_CASE("static ranks: each once in their order the missing ones named") {
  MembershipOptions options = between(1, 4);
  options.by_rank = true;
  Membership members(options);
  CHECK_FALSE(members.join(1, offer("d", 2, 3), kStart));
  CHECK_FALSE(members.join(2, offer("a", 4, 0), kStart));
  CHECK_FALSE(members.ready(kStart + 1h));
  CHECK(members.missing() == "machine_rank 1, 2");
  const auto twice = members.join(3, offer("x", 2, 3), kStart);
  REQUIRE(twice);
  CHECK(*twice == "two nodes claim machine_rank 3: d and x");
  CHECK(members.join(4, offer("y", 2, 4), kStart)->find("0 to 3") != std::string::npos);
  CHECK(members.join(5, offer("z", 2, -1), kStart)->find("no machine_rank") != std::string::npos);
  CHECK_FALSE(members.join(6, offer("c", 1, 2), kStart));
  CHECK_FALSE(members.join(7, offer("b", 1, 1), kStart));
  CHECK(members.ready(kStart));
  const Roster roster = members.assign();
  CHECK(hosts_of(roster) == Names{"a", "b", "c", "d"});
  CHECK(roster.world == 8);
  CHECK(roster.nodes[3].first_rank == 6);
  CHECK(roster.nodes[3].link == 1);
  members.leave(7, kStart);
  CHECK(members.missing() == "machine_rank 1");
  CHECK_FALSE(members.join(8, offer("new", 1, 1), kStart));
  CHECK(hosts_of(members.assign()) == Names{"a", "new", "c", "d"});
}

TEST_CASE("what is no offer is refused") {
  Membership members(between(1, 2));
  CHECK(members.join(1, offer("a", 0), kStart));
  CHECK(members.join(1, offer("a", 1 << 20), kStart));
  CHECK(members.join(1, offer(std::string(300, 'a')), kStart));
  NodeOffer nameless = offer("a");
  nameless.key.clear();
  CHECK(members.join(1, nameless, kStart));
  CHECK(members.present() == 0);
  CHECK_FALSE(members.join(1, offer("a"), kStart));
  NodeOffer copied = offer("b");
  copied.key = "key of a";
  CHECK(members.join(2, copied, kStart)->find("a and b have the same key") != std::string::npos);
  // The same machine again: its old link is dead, we only have not noticed yet.
  CHECK_FALSE(members.join(3, offer("a"), kStart));
  CHECK(members.present() == 1);
  members.leave(1, kStart);
  CHECK(members.present() == 1);
}

TEST_CASE(
    "a spare takes the lost place a returning node its own and a host's nodes stay together") {
  Membership members(between(2, 3));
  for (int i = 0; i < 5; ++i) members.join(i + 1, offer(std::string(1, char('a' + i))), kStart);
  CHECK(members.present() == 5);
  CHECK(hosts_of(members.assign()) == Names{"a", "b", "c"});
  members.leave(2, kStart);
  CHECK(hosts_of(members.assign()) == Names{"a", "d", "c"});
  members.leave(1, kStart);
  members.join(10, offer("a"), kStart);  // before the next assign(): its place is its own
  CHECK(hosts_of(members.assign()) == Names{"a", "d", "c"});
  members.leave(10, kStart);
  members.leave(3, kStart);
  // A new agent on the host that was lost goes first.
  NodeOffer other_agent = offer("c");
  other_agent.key = "another agent";
  members.join(11, other_agent, kStart);
  CHECK(hosts_of(members.assign()) == Names{"e", "d", "c"});

  Membership hosts(between(1, 8));
  int agent = 0;
  for (const char* host : {"x", "y", "x", "z", "y"}) {
    NodeOffer one = offer(host);
    one.key = std::to_string(agent);
    hosts.join(++agent, one, kStart);
  }
  CHECK(hosts_of(hosts.assign()) == Names{"x", "x", "y", "y", "z"});
}

TEST_CASE("any history: ranks are a bijection survivors keep their order generations grow") {
  CHECK(rc::check([](const std::vector<uint16_t>& history, uint8_t least, uint8_t extra) {
    const int min_nodes = 1 + least % 4;
    const int max_nodes = min_nodes + extra % 4;
    Membership members(between(min_nodes, max_nodes));
    std::map<LinkId, NodeOffer> live;
    Names before;
    int64_t generation = -1;
    LinkId next = 1;
    for (const uint16_t step : history) {
      const std::string host = "h" + std::to_string(step / 8 % 12);
      switch (step % 8) {
        case 0:
        case 1:
        case 2: {
          NodeOffer one = offer(host, 1 + step % 3, -1, step % 5 - 1);
          one.key = host;
          if (!members.join(next, one, kStart)) {
            std::erase_if(live, [&](const auto& other) { return other.second.key == host; });
            live[next] = one;
          }
          ++next;
          break;
        }
        case 3:
        case 4:
          for (const auto& [link, one] : live) {
            if (one.host != host) continue;
            members.leave(link, kStart);
            live.erase(link);
            break;
          }
          break;
        default: {
          const Roster roster = members.assign();
          RC_ASSERT(roster.generation == ++generation);
          RC_ASSERT(roster.nodes.size() == std::min(live.size(), static_cast<size_t>(max_nodes)));
          int rank = 0;
          std::set<LinkId> links;
          for (const RosterNode& node : roster.nodes) {
            RC_ASSERT(node.first_rank == rank);
            RC_ASSERT(live.at(node.link).host == node.host);
            RC_ASSERT(node.slots == live.at(node.link).slots);
            RC_ASSERT(links.insert(node.link).second);
            rank += node.slots;
          }
          RC_ASSERT(roster.world == rank);
          const Names now = hosts_of(roster);
          // Every earlier member that is present is still in, and in the same relative order.
          Names kept_before, kept_now;
          for (const std::string& name : before) {
            const bool here = std::any_of(live.begin(), live.end(),
                                          [&](const auto& one) { return one.second.host == name; });
            if (here) kept_before.push_back(name);
          }
          for (const std::string& name : now) {
            if (std::count(kept_before.begin(), kept_before.end(), name) > 0) {
              kept_now.push_back(name);
            }
          }
          RC_ASSERT(kept_before == kept_now);
          // If nobody's place is left empty, survivors have not moved at all.
          if (now.size() >= before.size()) {
            for (size_t i = 0; i < before.size(); ++i) {
              const bool kept = std::count(kept_now.begin(), kept_now.end(), before[i]) > 0;
              RC_ASSERT(!kept || now[i] == before[i]);
            }
          }
          before = now;
        }
      }
      RC_ASSERT(members.present() == static_cast<int>(live.size()));
      RC_ASSERT(members.ready(kStart + 1h) == (members.present() >= min_nodes));
    }
  }));
}

TEST_CASE("any roster survives encoding") {
  const auto text = [] {
    return rc::gen::resize(20, rc::gen::container<std::string>(rc::gen::elementOf(
                                   std::string("0123456789999ab-.:\0\xff", 19))));
  };
  CHECK(rc::check([&](int64_t generation, int world) {
    Roster roster;
    roster.generation = generation;
    roster.world = world;
    const int count = *rc::gen::inRange(0, 20);
    for (int i = 0; i < count; ++i) {
      RosterNode node;
      node.host = *text();
      node.address = *text();
      node.port = *rc::gen::arbitrary<uint16_t>();
      node.slots = *rc::gen::arbitrary<int>();
      node.first_rank = *rc::gen::arbitrary<int>();
      roster.nodes.push_back(node);
    }
    const std::string bytes = encode_roster(roster);
    const auto back = decode_roster(bytes);
    RC_ASSERT(back);
    RC_ASSERT(*back == roster);
    for (size_t cut = 0; cut < bytes.size(); ++cut) RC_ASSERT(!decode_roster(bytes.substr(0, cut)));
    RC_ASSERT(!decode_roster(bytes + '\0'));
  }));
}

TEST_CASE("a roster of thousands is small and numbers in names grow as people count") {
  Roster roster;
  roster.generation = 3;
  for (int i = 0; i < 4096; ++i) {
    RosterNode node;
    node.host = "gpu-" + std::to_string(9'990 + i) + ".cluster.example";
    node.address = "10.1." + std::to_string(i / 256) + "." + std::to_string(i % 256);
    node.port = static_cast<uint16_t>(30'000 + i * 7919 % 20'000);
    node.slots = 8;
    node.first_rank = 8 * i;
    roster.nodes.push_back(node);
  }
  roster.world = 8 * 4096;
  const std::string bytes = encode_roster(roster);
  CHECK(bytes.size() < 4 * 4096);
  REQUIRE(decode_roster(bytes));
  CHECK(*decode_roster(bytes) == roster);
  std::string bomb = {1, 0, 0};
  bomb += "\xff\xff\xff\x7f";
  CHECK_FALSE(decode_roster(bomb + std::string(1000, '\0')));
}

TEST_CASE("no bytes harm the roster's decoder") {
  Roster roster;
  for (int i = 0; i < 40; ++i) {
    RosterNode node;
    node.host = "node" + std::to_string(i);
    node.address = i % 3 == 0 ? "fd00::" + std::to_string(i) : "10.0.0." + std::to_string(i);
    node.port = static_cast<uint16_t>(i * 977);
    node.slots = i % 5 == 0 ? 4 : 8;
    roster.nodes.push_back(node);
  }
  const std::string good = encode_roster(roster);
  uint64_t state = 88172645463325252u;
  const auto random = [&state] {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
  };
  for (int i = 0; i < 100'000; ++i) {
    std::string bytes = good;
    for (uint64_t edits = 1 + random() % 4; edits > 0; --edits) {
      const size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes.erase(at, random() % 8);
          break;
        case 2:
          bytes.insert(at, 1 + random() % 4, static_cast<char>(random()));
          break;
        default:
          bytes.resize(at + 1);
      }
      if (bytes.empty()) bytes.push_back('\0');
    }
    const auto decoded = decode_roster(bytes);
    if (decoded) CHECK(decode_roster(encode_roster(*decoded)) == decoded);
  }
}
