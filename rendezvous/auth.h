// The proof of the run's token: HMAC-SHA256 over both nonces, the generation and the direction, so
// that neither side sends the token, a recorded proof is worth nothing, and a proof cannot be
// reflected to its sender.
#pragma once

#include <string>

#include "rendezvous/protocol.h"

namespace mtl::auth {

// From the kernel's generator. Throws Error "rendezvous.random" (Exit::environment).
wire::Nonce random_nonce();

wire::Mac client_proof(const std::string& token, const wire::Hello& hello,
                       const wire::Challenge& challenge);
// Also covers what the server answers, so that nobody can turn a refusal into a welcome.
wire::Mac server_proof(const std::string& token, const wire::Hello& hello,
                       const wire::Challenge& challenge, const wire::Welcome& welcome);
// In constant time.
bool equal(const wire::Mac& a, const wire::Mac& b);

// Throws Error "rendezvous.token" (Exit::environment) if it is empty.
void check_token(const std::string& token);

}  // namespace mtl::auth
