// What travels on a link once both sides trust each other, in the frames of protocol.h. No sockets.
//
//   message   the owner's kind, generation and body
//   beat      "are you there?", with the sender's time, and how far it has found the peer's clock
//             ahead of its own (with the round trip of that finding), so that one side's heartbeats
//             serve both
//   answer    the same time back, and what the answering side's system clock shows
//   greeting  the first frame of an adopted stream, which has no handshake: magic and version
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/link.h"

namespace mtl::link {

constexpr size_t kMaxBody = (size_t{16} << 20) - 64;

// Length, tag and fixed fields of a frame; the body of a message follows it.
struct Head {
  std::array<char, 32> bytes = {};
  uint8_t size = 0;
  std::string_view view() const { return {bytes.data(), size}; }
};
Head message_head(uint16_t kind, int64_t generation, size_t body_bytes);
Head beat(int64_t sent, int64_t round_trip, int64_t ahead);
Head answer(int64_t sent, int64_t clock);
Head greeting();

struct Frame {
  enum class Tag : uint8_t { message = 0x51, beat, answer, greeting };
  Tag tag = Tag::message;
  uint16_t kind = 0;
  int64_t generation = 0;
  std::string_view body;   // into the payload
  int64_t sent = 0;        // beat, answer
  int64_t round_trip = 0;  // beat; -1 = nothing found yet
  int64_t ahead = 0;       // beat
  int64_t clock = 0;       // answer
  uint32_t version = 0;
};
// The payload of one frame; nothing for anything but a complete, exact one.
std::optional<Frame> decode(std::string_view payload);

// Cuts a stream of bytes into payloads. Bytes of an unfinished frame are kept, and no more memory
// is taken than bytes have come.
class Splitter {
 public:
  enum class Result { ok, malformed };
  // Calls `take(payload)` for each frame that is complete now; it returns false to stop for good.
  // `limit()` is the longest payload that is accepted at that moment.
  template <typename Limit, typename Take>
  Result feed(std::string_view bytes, const Limit& limit, const Take& take);

 private:
  std::string rest_;
};

}  // namespace mtl::link

#include "rendezvous/protocol.h"

namespace mtl::link {

template <typename Limit, typename Take>
Splitter::Result Splitter::feed(std::string_view bytes, const Limit& limit, const Take& take) {
  std::string held;
  if (!rest_.empty()) {
    rest_.append(bytes);
    // An unfinished long frame is looked at again only when it may be complete.
    const auto length =
        rest_.size() < wire::kLengthBytes
            ? std::optional<size_t>(1)
            : wire::frame_length(std::string_view(rest_).substr(0, wire::kLengthBytes), limit());
    if (!length) return Result::malformed;
    if (rest_.size() < wire::kLengthBytes + *length) return Result::ok;
    held = std::move(rest_);
    rest_ = std::string();
    bytes = held;
  }
  while (bytes.size() >= wire::kLengthBytes) {
    const auto length = wire::frame_length(bytes.substr(0, wire::kLengthBytes), limit());
    if (!length) return Result::malformed;
    if (bytes.size() < wire::kLengthBytes + *length) break;
    const std::string_view payload = bytes.substr(wire::kLengthBytes, *length);
    bytes.remove_prefix(wire::kLengthBytes + *length);
    if (!take(payload)) return Result::ok;
  }
  rest_.assign(bytes);
  return Result::ok;
}

}  // namespace mtl::link
