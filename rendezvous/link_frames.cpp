// Little-endian fixed fields; the body of a message is the rest of its frame.
#include "rendezvous/link_frames.h"

namespace mtl::link {

namespace {

constexpr std::string_view kMagic = "MTLLINK\n";

void put(Head& head, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) head.bytes[head.size++] = static_cast<char>(value >> (8 * i));
}

Head begin(Frame::Tag tag, size_t payload_bytes) {
  Head head;
  put(head, payload_bytes, 4);
  put(head, static_cast<uint64_t>(tag), 1);
  return head;
}

uint64_t take(std::string_view& rest, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i) value |= uint64_t{static_cast<uint8_t>(rest[i])} << (8 * i);
  rest.remove_prefix(bytes);
  return value;
}

}  // namespace

Head message_head(uint16_t kind, int64_t generation, size_t body_bytes) {
  Head head = begin(Frame::Tag::message, 11 + body_bytes);
  put(head, kind, 2);
  put(head, static_cast<uint64_t>(generation), 8);
  return head;
}

Head beat(int64_t sent, int64_t round_trip, int64_t ahead) {
  Head head = begin(Frame::Tag::beat, 25);
  for (const int64_t value : {sent, round_trip, ahead}) put(head, static_cast<uint64_t>(value), 8);
  return head;
}

Head answer(int64_t sent, int64_t clock) {
  Head head = begin(Frame::Tag::answer, 17);
  put(head, static_cast<uint64_t>(sent), 8);
  put(head, static_cast<uint64_t>(clock), 8);
  return head;
}

Head greeting() {
  Head head = begin(Frame::Tag::greeting, 1 + kMagic.size() + 4);
  for (const char letter : kMagic) head.bytes[head.size++] = letter;
  put(head, wire::kVersion, 4);
  return head;
}

std::optional<Frame> decode(std::string_view payload) {
  if (payload.empty()) return std::nullopt;
  Frame frame;
  frame.tag = static_cast<Frame::Tag>(take(payload, 1));
  switch (frame.tag) {
    case Frame::Tag::message:
      if (payload.size() < 10) return std::nullopt;
      frame.kind = static_cast<uint16_t>(take(payload, 2));
      frame.generation = static_cast<int64_t>(take(payload, 8));
      frame.body = payload;
      return frame;
    case Frame::Tag::beat:
      if (payload.size() != 24) return std::nullopt;
      frame.sent = static_cast<int64_t>(take(payload, 8));
      frame.round_trip = static_cast<int64_t>(take(payload, 8));
      frame.ahead = static_cast<int64_t>(take(payload, 8));
      return frame;
    case Frame::Tag::answer:
      if (payload.size() != 16) return std::nullopt;
      frame.sent = static_cast<int64_t>(take(payload, 8));
      frame.clock = static_cast<int64_t>(take(payload, 8));
      return frame;
    case Frame::Tag::greeting:
      if (!payload.starts_with(kMagic) || payload.size() < kMagic.size() + 4) return std::nullopt;
      payload.remove_prefix(kMagic.size());
      frame.version = static_cast<uint32_t>(take(payload, 4));
      // What follows belongs to a version that we do not know.
      if (frame.version == wire::kVersion && !payload.empty()) return std::nullopt;
      return frame;
  }
  return std::nullopt;
}

}  // namespace mtl::link
