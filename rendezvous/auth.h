// The proof of the run's token: HMAC-SHA256 over both nonces, the generation and the direction, so
// that neither side sends the token, a recorded proof is worth nothing, and a proof cannot be
// reflected to its sender.
#pragma once

#include <memory>
#include <string>

#include "rendezvous/protocol.h"

namespace mtl::auth {

// From the kernel's generator. Throws Error "rendezvous.random" (Exit::environment).
wire::Nonce random_nonce();

// The token, ready to be used many times (OpenSSL looks up the algorithm once, which takes longer
// than the proof). Not thread-safe. Throws Error "rendezvous.token" if the token is empty,
// "rendezvous.hmac" if OpenSSL refuses (both Exit::environment).
class Key {
 public:
  Key(const std::string& token);  // implicit: one proof needs no Key of its own
  ~Key();
  Key(Key&&) noexcept;
  Key& operator=(Key&&) noexcept;
  wire::Mac hmac(const std::string& text) const;

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

// `clock` is that of the Proof.
wire::Mac client_proof(const Key& key, const wire::Hello& hello, const wire::Challenge& challenge,
                       int64_t clock = 0);
// Also covers what the server answers, so that nobody can turn a refusal into a welcome.
wire::Mac server_proof(const Key& key, const wire::Hello& hello, const wire::Challenge& challenge,
                       const wire::Welcome& welcome);
// In constant time.
bool equal(const wire::Mac& a, const wire::Mac& b);

// Throws Error "rendezvous.token" (Exit::environment) if it is empty.
void check_token(const std::string& token);

}  // namespace mtl::auth
