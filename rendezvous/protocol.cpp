// Little-endian integers, strings with a 32-bit length, one tag byte per message.
#include "rendezvous/protocol.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "common/error.h"

namespace mtl::wire {

namespace {

// A random scanner's bytes must not look like a Hello.
constexpr std::string_view kStoreMagic = "MTLSTORE";
constexpr std::string_view kLinkMagic = "MTLLINKS";

enum class Tag : uint8_t { hello = 0x41, challenge, proof, welcome, request, reply };

// Room that tags, lengths and numbers of any message may take beside its strings.
constexpr size_t kOverhead = 64;

class Writer {
 public:
  explicit Writer(Tag tag) { u8(static_cast<uint8_t>(tag)); }
  void u8(uint8_t value) { text_.push_back(static_cast<char>(value)); }
  void u32(uint32_t value) { integer(value, 4); }
  void i64(int64_t value) { integer(static_cast<uint64_t>(value), 8); }
  void raw(std::string_view bytes) { text_.append(bytes); }
  void string(std::string_view bytes) {
    u32(static_cast<uint32_t>(bytes.size()));
    raw(bytes);
  }
  void strings(const std::vector<std::string>& all) {
    u32(static_cast<uint32_t>(all.size()));
    for (const std::string& one : all) string(one);
  }
  template <size_t n>
  void array(const std::array<uint8_t, n>& bytes) {
    text_.append(reinterpret_cast<const char*>(bytes.data()), n);
  }
  std::string take() { return std::move(text_); }

 private:
  void integer(uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) text_.push_back(static_cast<char>(value >> (8 * i)));
  }
  std::string text_;
};

// After the first short read every further one yields zero, and complete() is false.
class Reader {
 public:
  Reader(Tag tag, std::string_view bytes) : rest_(bytes) {
    if (u8() != static_cast<uint8_t>(tag)) good_ = false;
  }
  uint8_t u8() { return static_cast<uint8_t>(integer(1)); }
  uint32_t u32() { return static_cast<uint32_t>(integer(4)); }
  int64_t i64() { return static_cast<int64_t>(integer(8)); }
  std::string_view raw(size_t bytes) {
    if (!good_ || bytes > rest_.size()) {
      good_ = false;
      return {};
    }
    const std::string_view part = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return part;
  }
  std::string string() { return std::string(raw(u32())); }
  std::vector<std::string> strings() {
    std::vector<std::string> all;
    // Every string takes its length at least: no more room than bytes have come.
    const size_t count = u32();
    if (count > rest_.size() / 4) good_ = false;
    for (size_t i = 0; good_ && i < count; ++i) all.push_back(string());
    return all;
  }
  template <size_t n>
  std::array<uint8_t, n> array() {
    std::array<uint8_t, n> bytes = {};
    const std::string_view part = raw(n);
    if (good_) std::memcpy(bytes.data(), part.data(), n);
    return bytes;
  }
  bool good() const { return good_; }
  bool complete() const { return good_ && rest_.empty(); }

 private:
  uint64_t integer(size_t bytes) {
    const std::string_view part = raw(bytes);
    uint64_t value = 0;
    for (size_t i = 0; i < part.size(); ++i) {
      value |= uint64_t{static_cast<uint8_t>(part[i])} << (8 * i);
    }
    return value;
  }
  std::string_view rest_;
  bool good_ = true;
};

template <typename Message>
std::optional<Message> if_complete(const Reader& reader, Message message) {
  return reader.complete() ? std::optional(std::move(message)) : std::nullopt;
}

}  // namespace

std::string encode(const Hello& message) {
  Writer out(Tag::hello);
  out.raw(message.service == Service::link ? kLinkMagic : kStoreMagic);
  out.u32(message.version);
  out.i64(message.generation);
  out.array(message.nonce);
  return out.take();
}

std::optional<Hello> decode_hello(std::string_view payload) {
  Reader in(Tag::hello, payload);
  const std::string_view magic = in.raw(kStoreMagic.size());
  if (magic != kStoreMagic && magic != kLinkMagic) return std::nullopt;
  Hello message;
  message.service = magic == kLinkMagic ? Service::link : Service::store;
  message.version = in.u32();
  if (in.good() && message.version != kVersion) return message;
  message.generation = in.i64();
  message.nonce = in.array<32>();
  return if_complete(in, message);
}

std::string encode(const Challenge& message) {
  Writer out(Tag::challenge);
  out.array(message.nonce);
  out.i64(message.clock);
  return out.take();
}

std::optional<Challenge> decode_challenge(std::string_view payload) {
  Reader in(Tag::challenge, payload);
  Challenge message;
  message.nonce = in.array<32>();
  message.clock = in.i64();
  return if_complete(in, message);
}

std::string encode(const Proof& message) {
  Writer out(Tag::proof);
  out.array(message.mac);
  out.i64(message.clock);
  return out.take();
}

std::optional<Proof> decode_proof(std::string_view payload) {
  Reader in(Tag::proof, payload);
  Proof message;
  message.mac = in.array<32>();
  message.clock = in.i64();
  return if_complete(in, message);
}

std::string encode(const Welcome& message) {
  Writer out(Tag::welcome);
  out.u8(static_cast<uint8_t>(message.verdict));
  out.i64(message.generation);
  out.array(message.mac);
  return out.take();
}

std::optional<Welcome> decode_welcome(std::string_view payload) {
  Reader in(Tag::welcome, payload);
  Welcome message;
  const uint8_t verdict = in.u8();
  if (verdict > static_cast<uint8_t>(Verdict::wrong_version)) return std::nullopt;
  message.verdict = static_cast<Verdict>(verdict);
  message.generation = in.i64();
  message.mac = in.array<32>();
  return if_complete(in, message);
}

std::string encode(const Request& message) {
  Writer out(Tag::request);
  out.u8(static_cast<uint8_t>(message.op));
  out.string(message.key);
  switch (message.op) {
    case Op::set:
      out.string(message.value);
      break;
    case Op::get:
      out.i64(message.timeout_ms);
      break;
    case Op::add:
      out.i64(message.amount);
      break;
    case Op::compare_set:
      out.string(message.expected);
      out.string(message.value);
      break;
    case Op::watch:
    case Op::barrier:
      out.i64(message.amount);
      out.i64(message.timeout_ms);
      break;
    case Op::exchange:
      out.i64(message.amount);
      out.i64(message.size);
      out.string(message.value);
      out.i64(message.timeout_ms);
      break;
  }
  return out.take();
}

std::optional<Request> decode_request(std::string_view payload) {
  Reader in(Tag::request, payload);
  Request message;
  const uint8_t op = in.u8();
  message.op = static_cast<Op>(op);
  message.key = in.string();
  switch (message.op) {
    case Op::set:
      message.value = in.string();
      break;
    case Op::get:
      message.timeout_ms = in.i64();
      break;
    case Op::add:
      message.amount = in.i64();
      break;
    case Op::compare_set:
      message.expected = in.string();
      message.value = in.string();
      break;
    case Op::watch:
    case Op::barrier:
      message.amount = in.i64();
      message.timeout_ms = in.i64();
      break;
    case Op::exchange:
      message.amount = in.i64();
      message.size = in.i64();
      message.value = in.string();
      message.timeout_ms = in.i64();
      break;
    default:
      return std::nullopt;
  }
  return if_complete(in, std::move(message));
}

std::string encode(const Reply& message) {
  Writer out(Tag::reply);
  out.u8(static_cast<uint8_t>(message.status));
  out.string(message.value);
  out.i64(message.number);
  out.strings(message.values);
  return out.take();
}

std::optional<Reply> decode_reply(std::string_view payload) {
  Reader in(Tag::reply, payload);
  Reply message;
  const uint8_t status = in.u8();
  if (status > static_cast<uint8_t>(Status::too_large)) return std::nullopt;
  message.status = static_cast<Status>(status);
  message.value = in.string();
  message.number = in.i64();
  message.values = in.strings();
  return if_complete(in, std::move(message));
}

std::string frame(std::string_view payload) {
  std::string text;
  text.reserve(kLengthBytes + payload.size());
  for (size_t i = 0; i < kLengthBytes; ++i) {
    text.push_back(static_cast<char>(payload.size() >> (8 * i)));
  }
  text.append(payload);
  return text;
}

std::optional<size_t> frame_length(std::string_view header, size_t limit) {
  if (header.size() != kLengthBytes) return std::nullopt;
  size_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length |= size_t{static_cast<uint8_t>(header[i])} << (8 * i);
  }
  if (length == 0 || length > limit) return std::nullopt;
  return length;
}

void check_size(const std::string& key, size_t bytes) {
  if (bytes <= kMaxFrame - kOverhead) return;
  throw Error(Exit::environment,
              {.code = "rendezvous.too_large",
               .what = fmt::format("the value of key '{}' has {} bytes; the store takes at most {}",
                                   key.substr(0, 64), bytes, kMaxFrame - kOverhead),
               .help = "the store is for small facts at the start of a job; put data into files"});
}

}  // namespace mtl::wire
