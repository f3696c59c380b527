// Who is in the job: from the nodes that offer themselves to the table of one generation. Pure: no
// sockets, no clock of its own. The controller owns one and asks it after every event.
//
//   waiting --(all that can come are here, or enough and the last call is over)--> ready
//   assign() makes the next generation of those present; a loss or an arrival may lead to another.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "rendezvous/link.h"

namespace mtl {

// What a node says of itself when it joins.
struct NodeOffer {
  std::string host;   // its name, for people
  std::string key;    // which machine and agent it is; the same key takes the same place again
  int slots = 0;      // ranks that it can run; >= 1
  int rank = -1;      // static: the machine_rank it was given; else -1
  int position = -1;  // its place in the host list (and in MembershipOptions::expected), where the
                      // controller knows it; else -1
  std::vector<std::string> addresses;  // numeric, by which others may reach it; the first is best
  uint16_t port = 0;                   // reserved, for the workers' meeting should it be node 0
  std::string machine;                 // machine_identity()
  bool on_gpus = false;                // its ranks use the machine's
};

struct RosterNode {
  std::string host;
  std::string address;
  uint16_t port = 0;
  int slots = 0;
  int first_rank = 0;
  LinkId link = 0;  // on the controller only; not encoded
  bool operator==(const RosterNode&) const = default;
};

// The table of one generation, in order of node rank.
struct Roster {
  int64_t generation = 0;
  int world = 0;  // ranks
  std::vector<RosterNode> nodes;
  bool operator==(const Roster&) const = default;
};
// Bytes of a name or an address in it.
constexpr size_t kRosterName = 255;
// Compact (names front-coded: most differ in a few digits), so that thousands of nodes fit: one
// table goes to every node, so its size counts squared. Nothing for anything malformed.
std::string encode_roster(const Roster& roster);
std::optional<Roster> decode_roster(std::string_view bytes);

struct MembershipOptions {
  int min_nodes = 1;
  int max_nodes = 1;
  bool by_rank = false;  // static: exactly the ranks 0 .. max_nodes-1, each once
  // Hosts that somebody has already asked to come (ssh): the start need not wait longer than until
  // each of them has come or is known bad. Empty = unknown who comes.
  std::vector<std::string> expected;
  // With at least min_nodes, how long to wait for more from the last arrival on.
  std::chrono::milliseconds last_call{10'000};
};

class Membership {
 public:
  using Time = std::chrono::steady_clock::time_point;
  explicit Membership(const MembershipOptions& options);

  // Nothing, or why this node is refused (two nodes claim machine_rank 1; rank out of range; ...).
  // Beyond max_nodes it is kept as a spare. The same key and host on a new link replaces the old
  // one, which the owner should close.
  std::optional<std::string> join(LinkId link, const NodeOffer& offer, Time now);
  // Gone; its place is kept for its key until the next assign().
  void leave(LinkId link, Time now);
  // The expected host at this place of the list will not come (ssh refused it). Not by its name:
  // one machine may be there twice.
  void will_not_come(int position);

  // Whether assign() would make a generation worth starting. After a loss it is so at once if
  // min_nodes are left: last_call counts only for who has come since the last assign().
  bool ready(Time now) const;
  // When ready() may change without an event; nothing if never.
  std::optional<Time> next_change(Time now) const;
  // Who is missing, for people: "machine_rank 2, 5", "m3, m4", "2 more nodes"; of those that the
  // job needs not, "up to 2 more nodes".
  std::string missing() const;
  // Expected hosts of which it is known that they do not come; "" if there are none.
  std::string known_bad() const;
  int present() const;
  bool has_rank(int rank) const { return by_rank_.count(rank) > 0; }  // by_rank only
  bool is_present(LinkId link) const { return nodes_.count(link) > 0; }
  // By which the node with this key is here.
  std::optional<LinkId> link_of(const std::string& key) const {
    const auto found = by_key_.find(key);
    return found != by_key_.end() ? std::optional(found->second) : std::nullopt;
  }
  // Expected hosts that have neither come nor are known not to.
  int awaited() const { return awaited_; }
  // False once min_nodes cannot be reached any more (all expected hosts have answered).
  bool possible() const;

  // The next generation: those present, at most max_nodes; earlier members keep their relative
  // order and a newcomer takes a lost member's place; else by rank, position, order of arrival,
  // with nodes of the same host side by side. The first generation is 0. If a number of ranks does
  // not fit (a layout may not divide it), the last nodes stay spares, down to min_nodes.
  Roster assign(const std::function<bool(int world)>& fits = {});
  int64_t generation() const { return generation_; }

 private:
  struct Node {
    LinkId link = 0;
    NodeOffer offer;
    int64_t arrival = 0;
    int place = -1;  // in the last roster; -1 = spare
  };
  struct Place {
    int place = 0;
    std::string host;
  };
  // Of an expected host: not heard of yet; has joined; will not come, or has come and left.
  enum State { unheard, here, gone };
  struct Expected {
    std::string host;
    State state = unheard;
    LinkId link = 0;
  };
  template <typename Index, typename Key>
  const Node* find(const Index& index, const Key& key) const;
  Expected* find_expected(int position);
  Expected* find_expected_of(LinkId link);
  void set_state(Expected& one, State state);
  std::vector<std::string> hosts_in(State state) const;
  Time last_call_end() const;
  std::vector<Node*> places_in_order();

  MembershipOptions options_;
  std::vector<Expected> expected_;
  int awaited_ = 0;
  std::map<LinkId, Node> nodes_;
  std::unordered_map<std::string, LinkId> by_key_;
  std::unordered_map<int, LinkId> by_rank_;  // static only
  std::map<std::string, Place> places_;      // by key, of the last roster
  int64_t arrivals_ = 0;
  int64_t generation_ = -1;
  std::optional<Time> last_arrival_;  // since the last assign()
};

}  // namespace mtl
