// HMAC by OpenSSL's EVP, nonces and tokens by getrandom(2).
#include "rendezvous/auth.h"

#include <cerrno>
#include <cstring>
#include <string_view>

#include <sys/random.h>

#include <fmt/format.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include "common/error.h"
#include "rendezvous/store.h"

namespace mtl::auth {

namespace {

[[noreturn]] void throw_no_hmac() {
  throw Error(Exit::environment,
              {.code = "rendezvous.hmac",
               .what = "OpenSSL cannot compute HMAC-SHA256 on this machine",
               .help = "check the OpenSSL configuration (OPENSSL_CONF, FIPS mode)"});
}

std::string transcript(std::string_view direction, const wire::Hello& hello,
                       const wire::Challenge& challenge) {
  std::string text = hello.service == wire::Service::link ? "mtl link " : "mtl store ";
  text += direction;
  text += wire::encode(hello);
  text += wire::encode(challenge);
  return text;
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

struct Key::Context {
  EVP_MAC_CTX* keyed = nullptr;
  ~Context() { EVP_MAC_CTX_free(keyed); }
};

Key::Key(const std::string& token) : context_(std::make_unique<Context>()) {
  check_token(token);
  EVP_MAC* algorithm = EVP_MAC_fetch(nullptr, "HMAC", nullptr);
  context_->keyed = EVP_MAC_CTX_new(algorithm);  // keeps it
  EVP_MAC_free(algorithm);
  char digest[] = "SHA256";
  const OSSL_PARAM parameters[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0), OSSL_PARAM_END};
  if (context_->keyed == nullptr ||
      EVP_MAC_init(context_->keyed, reinterpret_cast<const unsigned char*>(token.data()),
                   token.size(), parameters) != 1) {
    throw_no_hmac();
  }
}
Key::~Key() = default;
Key::Key(Key&&) noexcept = default;
Key& Key::operator=(Key&&) noexcept = default;

wire::Mac Key::hmac(const std::string& text) const {
  const Context context{EVP_MAC_CTX_dup(context_->keyed)};
  wire::Mac mac = {};
  size_t length = 0;
  if (context.keyed == nullptr ||
      EVP_MAC_update(context.keyed, reinterpret_cast<const unsigned char*>(text.data()),
                     text.size()) != 1 ||
      EVP_MAC_final(context.keyed, mac.data(), &length, mac.size()) != 1 || length != mac.size()) {
    throw_no_hmac();
  }
  return mac;
}

wire::Mac client_proof(const Key& key, const wire::Hello& hello, const wire::Challenge& challenge,
                       int64_t clock) {
  const wire::Proof facts = {.mac = {}, .clock = clock};
  return key.hmac(transcript("client\n", hello, challenge) + wire::encode(facts));
}

wire::Mac server_proof(const Key& key, const wire::Hello& hello, const wire::Challenge& challenge,
                       const wire::Welcome& welcome) {
  wire::Welcome facts = welcome;
  facts.mac = {};
  return key.hmac(transcript("server\n", hello, challenge) + wire::encode(facts));
}

bool equal(const wire::Mac& a, const wire::Mac& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

void check_token(const std::string& token) {
  if (!token.empty()) return;
  throw Error(Exit::environment,
              {.code = "rendezvous.token",
               .what = "the rendezvous needs the run's token, and it is empty",
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
