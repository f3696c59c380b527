// HMAC by OpenSSL's EVP, nonces and tokens by getrandom(2).
#include "rendezvous/auth.h"

#include <cerrno>
#include <cstring>
#include <string_view>

#include <sys/random.h>

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>

#include "common/error.h"
#include "rendezvous/store.h"

namespace mtl::auth {

namespace {

wire::Mac hmac(const std::string& token, const std::string& text) {
  wire::Mac mac = {};
  size_t length = 0;
  if (EVP_Q_mac(nullptr, "HMAC", nullptr, "SHA256", nullptr, token.data(), token.size(),
                reinterpret_cast<const unsigned char*>(text.data()), text.size(), mac.data(),
                mac.size(), &length) == nullptr ||
      length != mac.size()) {
    throw Error(Exit::environment,
                {.code = "rendezvous.hmac",
                 .what = "OpenSSL cannot compute HMAC-SHA256 on this machine",
                 .help = "check the OpenSSL configuration (OPENSSL_CONF, FIPS mode)"});
  }
  return mac;
}

std::string transcript(std::string_view direction, const wire::Hello& hello,
                       const wire::Challenge& challenge) {
  return std::string(direction) + wire::encode(hello) + wire::encode(challenge);
}

}  // namespace

wire::Nonce random_nonce() {
  wire::Nonce nonce;
  size_t have = 0;
  while (have < nonce.size()) {
    const ssize_t got = getrandom(nonce.data() + have, nonce.size() - have, 0);
    if (got > 0) {
      have += static_cast<size_t>(got);
    } else if (errno != EINTR) {
      throw Error(Exit::environment,
                  {.code = "rendezvous.random",
                   .what = fmt::format("the kernel gives no random bytes: {}", strerror(errno))});
    }
  }
  return nonce;
}

wire::Mac client_proof(const std::string& token, const wire::Hello& hello,
                       const wire::Challenge& challenge) {
  return hmac(token, transcript("mtl store client\n", hello, challenge));
}

wire::Mac server_proof(const std::string& token, const wire::Hello& hello,
                       const wire::Challenge& challenge, const wire::Welcome& welcome) {
  wire::Welcome facts = welcome;
  facts.mac = {};
  return hmac(token, transcript("mtl store server\n", hello, challenge) + wire::encode(facts));
}

bool equal(const wire::Mac& a, const wire::Mac& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

void check_token(const std::string& token) {
  if (!token.empty()) return;
  throw Error(Exit::environment,
              {.code = "rendezvous.token",
               .what = "the store needs the run's token, and it is empty",
               .help = "start the workers with mtl launch, which makes and passes the token"});
}

}  // namespace mtl::auth

namespace mtl {

std::string make_token() {
  std::string token;
  for (const uint8_t byte : auth::random_nonce()) token += fmt::format("{:02x}", byte);
  return token;
}

}  // namespace mtl
