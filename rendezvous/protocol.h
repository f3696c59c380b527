// The wire format: frames (32-bit little-endian length, then the payload), the handshake that the
// store and the links share, and the store's messages. No sockets here, so that every malformed
// message can be tested byte by byte.
//
//   client -> Hello      which service, nonce and generation
//   server -> Challenge  its nonce
//   client -> Proof      HMAC over both nonces
//   server -> Welcome    accepted or not; its own HMAC if the client's was right
//   store: then Request and Reply in turn; a client has one request under way per connection.
//   link: then the frames of link_frames.h, both ways.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mtl::wire {

constexpr size_t kMaxFrame = size_t{16} << 20;
// Before a peer has proved the token it may not make us allocate more than this.
constexpr size_t kMaxHandshakeFrame = 256;
constexpr size_t kLengthBytes = 4;
constexpr uint32_t kVersion = 3;

using Nonce = std::array<uint8_t, 32>;
using Mac = std::array<uint8_t, 32>;

// A proof for one service is worth nothing at the other.
enum class Service : uint8_t { store, link };
struct Hello {
  Service service = Service::store;
  uint32_t version = kVersion;
  int64_t generation = 0;
  Nonce nonce = {};
};
// `clock`: the sender's system time in ns, so that a link knows from the start how far the two
// clocks are apart; the store leaves it 0.
struct Challenge {
  Nonce nonce = {};
  int64_t clock = 0;
};
struct Proof {
  Mac mac = {};
  int64_t clock = 0;
};
enum class Verdict : uint8_t { accepted, wrong_token, wrong_generation, wrong_version };
struct Welcome {
  Verdict verdict = Verdict::accepted;
  int64_t generation = 0;  // the server's
  Mac mac = {};            // zero for wrong_token and wrong_version
};

enum class Op : uint8_t {
  set = 1,
  get,
  add,
  compare_set,
  watch,
  barrier,
  exchange,
};
struct Request {
  Op op = Op::set;
  std::string key = {};
  std::string value = {};     // set, exchange: the value; compare_set: desired
  std::string expected = {};  // compare_set
  int64_t amount = 0;  // add; watch: the version seen; barrier: participants; exchange: the rank
  int64_t size = 0;    // exchange
  int64_t timeout_ms = 0;  // of what waits
};
enum class Status : uint8_t {
  ok,
  timeout,
  not_a_number,
  disagree,   // barrier, exchange: the participants name different numbers
  too_large,  // exchange: all values together do not fit into a frame
};
struct Reply {
  Status status = Status::ok;
  std::string value = {};
  int64_t number = 0;
  std::vector<std::string> values = {};
};

// The payload of one frame. Decoders return nothing for anything but a complete, exact message; of
// a Hello of another version only the version is read.
std::string encode(const Hello& message);
std::string encode(const Challenge& message);
std::string encode(const Proof& message);
std::string encode(const Welcome& message);
std::string encode(const Request& message);
std::string encode(const Reply& message);
std::optional<Hello> decode_hello(std::string_view payload);
std::optional<Challenge> decode_challenge(std::string_view payload);
std::optional<Proof> decode_proof(std::string_view payload);
std::optional<Welcome> decode_welcome(std::string_view payload);
std::optional<Request> decode_request(std::string_view payload);
std::optional<Reply> decode_reply(std::string_view payload);

// Length and payload. The payload must not be longer than kMaxFrame.
std::string frame(std::string_view payload);
// The payload length announced by kLengthBytes bytes; nothing if it is 0 or above `limit`.
std::optional<size_t> frame_length(std::string_view header, size_t limit);

// Throws Error "rendezvous.too_large" (Exit::environment) if a message about `key` that carries
// `bytes` of key and values would not fit in a frame.
void check_size(const std::string& key, size_t bytes);

}  // namespace mtl::wire
