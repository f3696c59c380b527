// Who is in, who is missing, who gets which place.
#include "rendezvous/membership.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

#include <fmt/format.h>

#include "common/text.h"

namespace mtl {

namespace {

// What a roster can carry; see roster.cpp.
constexpr int kMaxSlots = 1 << 16;

int known_first(int value) {
  return value >= 0 ? value : std::numeric_limits<int>::max();
}

}  // namespace

Membership::Membership(const MembershipOptions& options) : options_(options) {
  if (options_.by_rank) options_.min_nodes = options_.max_nodes;
  options_.max_nodes = std::max(options_.max_nodes, options_.min_nodes);
  for (const std::string& host : options_.expected) {
    expected_.push_back({host, unheard, {}});
  }
  awaited_ = static_cast<int>(expected_.size());
}

std::optional<std::string> Membership::join(LinkId link, const NodeOffer& offer, Time now) {
  if (offer.key.empty() || offer.host.empty()) {
    return fmt::format("the node '{}' does not say who it is (its key is '{}')", offer.host,
                       offer.key);
  }
  if (offer.host.size() > kRosterName) {
    return fmt::format("the node's name has {} bytes; at most {} are possible", offer.host.size(),
                       kRosterName);
  }
  for (const std::string& address : offer.addresses) {
    if (address.size() > kRosterName) {
      return fmt::format("an address of {} has {} bytes; at most {} are possible", offer.host,
                         address.size(), kRosterName);
    }
  }
  if (offer.slots < 1 || offer.slots > kMaxSlots) {
    return fmt::format("{} offers {} slots; 1 to {} are possible", offer.host, offer.slots,
                       kMaxSlots);
  }
  if (options_.by_rank && (offer.rank < 0 || offer.rank >= options_.max_nodes)) {
    return offer.rank < 0
               ? fmt::format("{} has no machine_rank; each of the {} nodes needs its own",
                             offer.host, options_.max_nodes)
               : fmt::format("{} has machine_rank {}; with {} nodes it is 0 to {}", offer.host,
                             offer.rank, options_.max_nodes, options_.max_nodes - 1);
  }
  // The same machine on a new link: the old one is dead, and we have not noticed yet.
  if (const Node* other = find(by_key_, offer.key); other != nullptr && other->link != link) {
    if (other->offer.host != offer.host) {
      return fmt::format("{} and {} have the same key '{}': one was copied from the other",
                         other->offer.host, offer.host, offer.key);
    }
    leave(other->link, now);
  }
  if (const Node* other = find(by_rank_, offer.rank); other != nullptr && other->link != link) {
    return fmt::format("two nodes claim machine_rank {}: {} and {}", offer.rank, other->offer.host,
                       offer.host);
  }
  leave(link, now);
  Node node;
  node.link = link;
  node.offer = offer;
  node.arrival = arrivals_++;
  const auto place = places_.find(offer.key);
  if (place != places_.end()) node.place = place->second.place;
  by_key_[offer.key] = link;
  if (options_.by_rank) by_rank_[offer.rank] = link;
  nodes_[link] = std::move(node);
  last_arrival_ = now;
  if (Expected* expected = find_expected(offer.position); expected && expected->state != here) {
    set_state(*expected, here);
    expected->link = link;
  }
  return std::nullopt;
}

template <typename Index, typename Key>
const Membership::Node* Membership::find(const Index& index, const Key& key) const {
  const auto found = index.find(key);
  return found == index.end() ? nullptr : &nodes_.at(found->second);
}

void Membership::set_state(Expected& one, State state) {
  awaited_ += (state == unheard) - (one.state == unheard);
  one.state = state;
}

Membership::Expected* Membership::find_expected(int position) {
  if (position < 0 || static_cast<size_t>(position) >= expected_.size()) return nullptr;
  return &expected_[static_cast<size_t>(position)];
}

void Membership::leave(LinkId link, Time) {
  const auto node = nodes_.find(link);
  if (node == nodes_.end()) return;
  by_key_.erase(node->second.offer.key);
  if (options_.by_rank) by_rank_.erase(node->second.offer.rank);
  // It has answered; whether it comes again, nobody knows.
  if (Expected* one = find_expected_of(link)) set_state(*one, gone);
  nodes_.erase(node);
}

Membership::Expected* Membership::find_expected_of(LinkId link) {
  const auto found = std::find_if(expected_.begin(), expected_.end(), [&](const Expected& one) {
    return one.state == here && one.link == link;
  });
  return found == expected_.end() ? nullptr : &*found;
}

void Membership::will_not_come(int position) {
  Expected* one = find_expected(position);
  if (one != nullptr && one->state == unheard) set_state(*one, gone);
}

bool Membership::ready(Time now) const {
  if (present() >= options_.max_nodes) return true;
  if (present() < options_.min_nodes) return false;
  if (!expected_.empty() && awaited_ == 0) return true;
  return now >= last_call_end();
}

Membership::Time Membership::last_call_end() const {
  // Nobody has come since the last assign(): who wanted to has been waited for already.
  if (!last_arrival_) return Time::min();
  const auto longest =
      std::chrono::duration_cast<std::chrono::milliseconds>(Time::max() - *last_arrival_);
  return *last_arrival_ + std::min(options_.last_call, longest);
}

std::optional<Membership::Time> Membership::next_change(Time now) const {
  if (ready(now) || present() < options_.min_nodes) return std::nullopt;
  return last_call_end();
}

std::string Membership::missing() const {
  std::vector<std::string> names;
  if (options_.by_rank) {
    std::vector<bool> have(static_cast<size_t>(options_.max_nodes));
    for (const auto& [link, node] : nodes_) have[static_cast<size_t>(node.offer.rank)] = true;
    for (size_t rank = 0; rank < have.size(); ++rank) {
      if (!have[rank]) names.push_back(std::to_string(rank));
    }
    return names.empty() ? "" : "machine_rank " + some_of(names);
  }
  // Those that may still come; if there are none, those that should have.
  for (const State state : {unheard, gone}) {
    names = hosts_in(state);
    if (!names.empty()) return some_of(names);
  }
  const int lacking = options_.min_nodes - present();
  const int room = options_.max_nodes - present();
  if (room <= 0) return "";
  const int count = lacking > 0 ? lacking : room;
  return fmt::format("{}{} more {}", lacking > 0 ? "" : "up to ", count,
                     count == 1 ? "node" : "nodes");
}

std::string Membership::known_bad() const {
  return some_of(hosts_in(gone));
}

std::vector<std::string> Membership::hosts_in(State state) const {
  std::vector<std::string> hosts;
  for (const Expected& one : expected_) {
    if (one.state == state) hosts.push_back(one.host);
  }
  return hosts;
}

int Membership::present() const {
  return static_cast<int>(nodes_.size());
}

bool Membership::possible() const {
  return expected_.empty() || present() + awaited_ >= options_.min_nodes;
}

std::vector<Membership::Node*> Membership::places_in_order() {
  std::vector<Node*> survivors, newcomers;
  for (auto& [link, node] : nodes_) (node.place >= 0 ? survivors : newcomers).push_back(&node);
  std::sort(newcomers.begin(), newcomers.end(), [](const Node* a, const Node* b) {
    return std::make_tuple(known_first(a->offer.rank), known_first(a->offer.position), a->arrival) <
           std::make_tuple(known_first(b->offer.rank), known_first(b->offer.position), b->arrival);
  });
  const auto most = static_cast<size_t>(options_.max_nodes) - survivors.size();
  if (newcomers.size() > most) newcomers.resize(most);

  // The places of the last roster, with holes where members were lost.
  std::vector<Node*> order(places_.size());
  for (Node* node : survivors) order[static_cast<size_t>(node->place)] = node;
  std::vector<const std::string*> hosts(places_.size());
  for (const auto& [key, place] : places_) hosts[static_cast<size_t>(place.place)] = &place.host;
  const auto take = [&](const auto& wanted) -> Node* {
    const auto found = std::find_if(newcomers.begin(), newcomers.end(), wanted);
    if (found == newcomers.end()) return nullptr;
    Node* node = *found;
    newcomers.erase(found);
    return node;
  };
  // A new agent on the host that was lost first, then whoever is next.
  for (size_t i = 0; i < order.size(); ++i) {
    if (order[i] != nullptr) continue;
    order[i] = take([&](const Node* node) { return node->offer.host == *hosts[i]; });
  }
  for (Node*& node : order) {
    if (node == nullptr) node = take([](const Node*) { return true; });
  }
  std::erase(order, nullptr);
  // The rest behind them, the nodes of one host side by side.
  std::map<std::string, size_t> first_of_host;
  for (const Node* node : newcomers) first_of_host.emplace(node->offer.host, first_of_host.size());
  std::stable_sort(newcomers.begin(), newcomers.end(), [&](const Node* a, const Node* b) {
    return first_of_host.at(a->offer.host) < first_of_host.at(b->offer.host);
  });
  order.insert(order.end(), newcomers.begin(), newcomers.end());
  return order;
}

Roster Membership::assign(const std::function<bool(int world)>& fits) {
  std::vector<Node*> order;
  if (options_.by_rank) {
    for (auto& [link, node] : nodes_) order.push_back(&node);
    std::sort(order.begin(), order.end(),
              [](const Node* a, const Node* b) { return a->offer.rank < b->offer.rank; });
  } else {
    order = places_in_order();
  }
  const auto world_of = [](const std::vector<Node*>& nodes) {
    return std::accumulate(nodes.begin(), nodes.end(), 0,
                           [](int sum, const Node* node) { return sum + node->offer.slots; });
  };
  while (fits && !fits(world_of(order)) && static_cast<int>(order.size()) > options_.min_nodes) {
    order.pop_back();
  }
  Roster roster;
  roster.generation = ++generation_;
  for (auto& [link, node] : nodes_) node.place = -1;
  places_.clear();
  last_arrival_.reset();
  for (size_t i = 0; i < order.size(); ++i) {
    Node& node = *order[i];
    node.place = static_cast<int>(i);
    places_[node.offer.key] = {.place = node.place, .host = node.offer.host};
    RosterNode& row = roster.nodes.emplace_back();
    row.host = node.offer.host;
    if (!node.offer.addresses.empty()) row.address = node.offer.addresses.front();
    row.port = node.offer.port;
    row.slots = node.offer.slots;
    row.first_rank = roster.world;
    row.link = node.link;
    roster.world += node.offer.slots;
  }
  return roster;
}

}  // namespace mtl
