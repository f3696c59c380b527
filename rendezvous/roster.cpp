// The roster's bytes. Names and addresses mostly differ from the one before in a number, so each is
// told as a difference to it (front coding, with a short form for "the next number"); what follows
// from the node before takes no bytes. Thousands of nodes then take 3 to 4 bytes each.
//
//   version, generation, world, nodes, then per node one byte of flags and what they announce:
//   host, address, port, slots, first rank
#include <array>
#include <cstring>

#include "rendezvous/membership.h"

namespace mtl {

namespace {

constexpr char kVersion = 1;
// A few bytes must not make us allocate gigabytes.
constexpr uint64_t kMaxNodes = 1 << 17;

// Flags of a node.
enum : uint8_t {
  kHostMode = 0x03,     // a Mode
  kAddressMode = 0x0c,  // a Mode, shifted by 2
  kNewPort = 0x10,      // else as before
  kNewSlots = 0x20,     // else as before
  kNewRank = 0x40,      // else the rank after the node before
};
enum Mode : uint8_t {
  same,
  next,   // its last number is larger by one
  other,  // bytes shared with the front of the one before, length of the rest, the rest
};

void put_varint(std::string& out, uint64_t value) {
  while (value >= 0x80) {
    out.push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out.push_back(static_cast<char>(value));
}

// Small numbers of either sign stay short.
void put_signed(std::string& out, int64_t value) {
  put_varint(out, (static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63));
}

bool is_digit(char letter) {
  return letter >= '0' && letter <= '9';
}

// The name or address of the node before, and where its last number stands.
class Text {
 public:
  std::string_view view() const { return {bytes_.data(), size_}; }
  // A copy of constant size into the string itself, where most names fit, takes a fraction of the
  // time; a controller's table goes to everybody, and everybody decodes all of it.
  operator std::string() const {
    constexpr size_t kInside = 15;
    std::string text(bytes_.data(), kInside);
    if (size_ <= kInside) {
      text.resize(size_);
    } else {
      text.assign(view());
    }
    return text;
  }

  bool assign(size_t shared, std::string_view rest) {
    if (shared > size_ || shared + rest.size() > kRosterName) return false;
    std::memcpy(bytes_.data() + shared, rest.data(), rest.size());
    size_ = shared + rest.size();
    end_ = size_;
    while (end_ > 0 && !is_digit(bytes_[end_ - 1])) --end_;
    begin_ = end_;
    while (begin_ > 0 && is_digit(bytes_[begin_ - 1])) --begin_;
    return true;
  }

  // "node099" -> "node100", "m9" -> "m10", "gpu-7.lan" -> "gpu-8.lan"; false if it has no number.
  bool increment() {
    if (begin_ == end_) return false;
    size_t at = end_;
    while (at > begin_ && bytes_[at - 1] == '9') bytes_[--at] = '0';
    if (at > begin_) {
      ++bytes_[at - 1];
      return true;
    }
    if (size_ == kRosterName) return false;
    std::memmove(bytes_.data() + begin_ + 1, bytes_.data() + begin_, size_ - begin_);
    bytes_[begin_] = '1';
    ++size_;
    ++end_;
    return true;
  }

 private:
  std::array<char, kRosterName> bytes_ = {};
  size_t size_ = 0;
  size_t begin_ = 0, end_ = 0;
};

// Writes what `text` is to `before`, which becomes it. False if it is too long.
bool put_text(std::string& out, Text& before, std::string_view text, Mode& mode) {
  if (before.view() == text) {
    mode = same;
    return true;
  }
  Text successor = before;
  if (successor.increment() && successor.view() == text) {
    mode = next;
    before = successor;
    return true;
  }
  mode = other;
  size_t shared = 0;
  const std::string_view old = before.view();
  while (shared < old.size() && shared < text.size() && old[shared] == text[shared]) ++shared;
  const std::string_view rest = text.substr(shared);
  put_varint(out, shared);
  put_varint(out, rest.size());
  out.append(rest);
  return before.assign(shared, rest);
}

class Reader {
 public:
  explicit Reader(std::string_view bytes) : at_(bytes.data()), end_(at_ + bytes.size()) {}
  bool good() const { return good_; }
  bool at_end() const { return at_ == end_; }
  size_t left() const { return static_cast<size_t>(end_ - at_); }
  uint8_t byte() {
    if (at_ == end_) {
      good_ = false;
      return 0;
    }
    return static_cast<uint8_t>(*at_++);
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const uint8_t part = byte();
      value |= uint64_t{part & 0x7fu} << shift;
      if (part < 0x80) return value;
    }
    good_ = false;
    return 0;
  }
  int64_t integer() {
    const uint64_t value = varint();
    return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
  }
  int small() {
    const int64_t value = integer();
    if (value != static_cast<int>(value)) good_ = false;
    return static_cast<int>(value);
  }
  std::string_view raw(uint64_t bytes) {
    if (bytes > left()) {
      good_ = false;
      return {};
    }
    const std::string_view part(at_, bytes);
    at_ += bytes;
    return part;
  }
  void text(Text& before, unsigned mode) {
    if (mode == same) return;
    if (mode == next) {
      if (!before.increment()) good_ = false;
    } else if (mode == other) {
      const uint64_t shared = varint();
      const std::string_view rest = raw(varint());
      if (!good_ || shared > kRosterName || !before.assign(shared, rest)) good_ = false;
    } else {
      good_ = false;
    }
  }

 private:
  const char* at_;
  const char* end_;
  bool good_ = true;
};

}  // namespace

std::string encode_roster(const Roster& roster) {
  std::string out;
  out.reserve(64 + 8 * roster.nodes.size());
  out.push_back(kVersion);
  put_signed(out, roster.generation);
  put_signed(out, roster.world);
  put_varint(out, roster.nodes.size());
  Text host, address;
  uint16_t port = 0;
  int slots = 0;
  uint32_t rank = 0;  // may wrap in nonsense, which is then told in full
  std::string parts;
  for (const RosterNode& node : roster.nodes) {
    parts.clear();
    Mode host_mode = same, address_mode = same;
    // Names that are too long cannot come from Membership.
    put_text(parts, host, std::string_view(node.host).substr(0, kRosterName), host_mode);
    put_text(parts, address, std::string_view(node.address).substr(0, kRosterName), address_mode);
    uint8_t flags = static_cast<uint8_t>(host_mode | address_mode << 2);
    if (node.port != port) {
      flags |= kNewPort;
      parts.push_back(static_cast<char>(node.port));
      parts.push_back(static_cast<char>(node.port >> 8));
    }
    if (node.slots != slots) {
      flags |= kNewSlots;
      put_signed(parts, node.slots);
    }
    if (node.first_rank != static_cast<int>(rank)) {
      flags |= kNewRank;
      put_signed(parts, node.first_rank);
    }
    out.push_back(static_cast<char>(flags));
    out += parts;
    port = node.port;
    slots = node.slots;
    rank = static_cast<uint32_t>(node.first_rank) + static_cast<uint32_t>(node.slots);
  }
  return out;
}

std::optional<Roster> decode_roster(std::string_view bytes) {
  Reader in(bytes);
  if (in.byte() != kVersion) return std::nullopt;
  Roster roster;
  roster.generation = in.integer();
  roster.world = in.small();
  const uint64_t count = in.varint();
  if (!in.good() || count > kMaxNodes || count > in.left()) return std::nullopt;
  roster.nodes.reserve(count);
  Text host, address;
  uint16_t port = 0;
  int slots = 0;
  uint32_t rank = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const uint8_t flags = in.byte();
    if ((flags & 0x80) != 0) return std::nullopt;
    in.text(host, flags & kHostMode);
    in.text(address, (flags & kAddressMode) >> 2);
    if ((flags & kNewPort) != 0) {
      const unsigned low = in.byte();
      port = static_cast<uint16_t>(low | unsigned{in.byte()} << 8);
    }
    if ((flags & kNewSlots) != 0) slots = in.small();
    if ((flags & kNewRank) != 0) rank = static_cast<uint32_t>(in.small());
    if (!in.good()) return std::nullopt;
    roster.nodes.emplace_back(host, address, port, slots, static_cast<int>(rank), LinkId{0});
    rank += static_cast<uint32_t>(slots);
  }
  if (!in.at_end()) return std::nullopt;
  return roster;
}

}  // namespace mtl
