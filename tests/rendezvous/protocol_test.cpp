// The wire format and the proofs, without sockets.
#include "rendezvous/protocol.h"

#include <rapidcheck.h>

#include <doctest/doctest.h>

#include "common/error.h"
#include "rendezvous/auth.h"
#include "rendezvous/store.h"
#include "rendezvous/table.h"

using namespace mtl;

TEST_CASE("every message survives encoding and no prefix or extension of it decodes") {
  wire::Nonce nonce;
  for (size_t i = 0; i < nonce.size(); ++i) nonce[i] = static_cast<uint8_t>(200 + i);
  const auto exact = [](const std::string& text, auto decode) {
    CHECK(decode(text));
    for (size_t cut = 0; cut < text.size(); ++cut) CHECK_FALSE(decode(text.substr(0, cut)));
    CHECK_FALSE(decode(text + '\0'));
  };
  const wire::Hello hello = {.generation = -3, .nonce = nonce};
  exact(wire::encode(hello), wire::decode_hello);
  CHECK(wire::decode_hello(wire::encode(hello))->generation == -3);
  CHECK(wire::decode_hello(wire::encode(hello))->nonce == nonce);
  const wire::Hello link = {.service = wire::Service::link, .nonce = nonce};
  exact(wire::encode(link), wire::decode_hello);
  CHECK(wire::decode_hello(wire::encode(link))->service == wire::Service::link);
  CHECK(wire::decode_hello(wire::encode(hello))->service == wire::Service::store);
  // Of another version, whatever it may look like, the version is all that we know.
  const wire::Hello newer = {.version = 99};
  CHECK(wire::decode_hello(wire::encode(newer) + "more")->version == 99);
  exact(wire::encode(wire::Challenge{.nonce = nonce, .clock = -9}), wire::decode_challenge);
  CHECK(wire::decode_challenge(wire::encode(wire::Challenge{nonce, -9}))->clock == -9);
  exact(wire::encode(wire::Proof{.mac = nonce, .clock = 1LL << 60}), wire::decode_proof);
  CHECK(wire::decode_proof(wire::encode(wire::Proof{nonce, 1LL << 60}))->clock == 1LL << 60);
  const wire::Welcome welcome = {
      .verdict = wire::Verdict::wrong_generation, .generation = 1LL << 40, .mac = nonce};
  exact(wire::encode(welcome), wire::decode_welcome);
  CHECK(wire::decode_welcome(wire::encode(welcome))->generation == 1LL << 40);
  for (const wire::Op op : {wire::Op::set, wire::Op::get, wire::Op::add, wire::Op::compare_set}) {
    const wire::Request request = {.op = op,
                                   .key = "key",
                                   .value = std::string("v\0w", 3),
                                   .expected = "e",
                                   .amount = -7,
                                   .timeout_ms = 1234};
    exact(wire::encode(request), wire::decode_request);
    const auto back = wire::decode_request(wire::encode(request));
    CHECK(back->key == "key");
    if (op == wire::Op::set || op == wire::Op::compare_set) CHECK(back->value == request.value);
    if (op == wire::Op::add) CHECK(back->amount == -7);
    if (op == wire::Op::get) CHECK(back->timeout_ms == 1234);
    if (op == wire::Op::compare_set) CHECK(back->expected == "e");
  }
  exact(wire::encode(wire::Reply{.status = wire::Status::timeout, .value = "x", .number = -1}),
        wire::decode_reply);
}

TEST_CASE("decoders take any bytes without harm") {
  CHECK(rc::check([](const std::string& bytes) {
    (void)wire::decode_hello(bytes);
    (void)wire::decode_request(bytes);
    (void)wire::decode_reply(bytes);
  }));
  // A string that claims more than the message has.
  std::string lying = wire::encode(
      wire::Request{.op = wire::Op::set, .key = "key", .value = "value", .expected = {}});
  for (size_t i = 2; i < 6; ++i) lying[i] = static_cast<char>(0xff);
  CHECK_FALSE(wire::decode_request(lying));
}

TEST_CASE("frame lengths are capped") {
  const std::string text = wire::frame("hello");
  CHECK(text.size() == 9);
  CHECK(wire::frame_length(text.substr(0, 4), 100) == 5);
  CHECK_FALSE(wire::frame_length(text.substr(0, 4), 4));
  CHECK_FALSE(wire::frame_length(std::string(4, '\0'), 100));
  CHECK_FALSE(wire::frame_length(std::string(4, '\xff'), wire::kMaxFrame));
  CHECK_FALSE(wire::frame_length("abc", 100));
}

TEST_CASE("a proof binds token both nonces service generation clock verdict and direction") {
  const auth::Key kKey(std::string("token"));
  const wire::Hello hello = {.generation = 1, .nonce = auth::random_nonce()};
  const wire::Challenge challenge = {auth::random_nonce()};
  CHECK(hello.nonce != challenge.nonce);
  const wire::Mac proof = auth::client_proof(kKey, hello, challenge);
  CHECK(auth::equal(proof, auth::client_proof(kKey, hello, challenge)));
  CHECK_FALSE(auth::equal(proof, auth::client_proof(std::string("tokem"), hello, challenge)));
  CHECK_FALSE(auth::equal(proof, auth::client_proof(kKey, hello, {auth::random_nonce()})));
  wire::Hello other = hello;
  other.generation = 2;
  CHECK_FALSE(auth::equal(proof, auth::client_proof(kKey, other, challenge)));
  other = hello;
  other.service = wire::Service::link;
  CHECK_FALSE(auth::equal(proof, auth::client_proof(kKey, other, challenge)));
  CHECK_FALSE(auth::equal(proof, auth::client_proof(kKey, hello, challenge, 1)));
  CHECK_FALSE(
      auth::equal(proof, auth::client_proof(kKey, hello, {.nonce = challenge.nonce, .clock = 1})));
  const wire::Welcome welcome = {.generation = 1};
  const wire::Mac answer = auth::server_proof(kKey, hello, challenge, welcome);
  CHECK_FALSE(auth::equal(proof, answer));
  wire::Welcome refusal = welcome;
  refusal.verdict = wire::Verdict::wrong_generation;
  CHECK_FALSE(auth::equal(answer, auth::server_proof(kKey, hello, challenge, refusal)));
}

TEST_CASE("HMAC-SHA256 known answer: the transcript's layout is fixed") {
  // Computed by Python's hmac over the label and the messages, byte by byte.
  wire::Hello hello;
  wire::Challenge challenge;
  const wire::Mac proof = auth::client_proof(std::string("key"), hello, challenge);
  std::string hex;
  for (const uint8_t byte : proof) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  CHECK(hex == "6ab163b4cb72c677e17da0a239b82c6ba7be6c5659e6f82b377416dd9ed48497");
}

TEST_CASE("tokens are 256 bits and never the same") {
  const std::string token = make_token();
  CHECK(token.size() == 64);
  CHECK(token.find_first_not_of("0123456789abcdef") == std::string::npos);
  CHECK(token != make_token());
}

TEST_CASE("the key table refuses to add to what is no 64-bit integer") {
  KeyTable table;
  CHECK(table.add("n", 5) == 5);
  CHECK(table.add("n", -7) == -2);
  CHECK(*table.find("n") == "-2");
  table.set("text", "12x");
  CHECK_FALSE(table.add("text", 1));
  table.set("max", "9223372036854775807");
  CHECK_FALSE(table.add("max", 1));
  CHECK(*table.find("max") == "9223372036854775807");
  CHECK(table.compare_set("c", "x", "y").empty());
  CHECK(table.find("c") == nullptr);
  CHECK(table.compare_set("c", "", "y") == "y");
  CHECK(table.compare_set("c", "", "z") == "y");
  CHECK(table.compare_set("c", "y", "z") == "z");
}
