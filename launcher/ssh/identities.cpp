#include "launcher/ssh/identities.h"

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <string_view>

#include <openssl/evp.h>

#include "common/error.h"
#include "common/files.h"

namespace mtl::ssh {

namespace {

constexpr size_t kLargestKey = 64 * 1024;

// Says whether a key file that could not be read wants a passphrase.
bool wants_passphrase(const std::string& text) {
  // PEM and PKCS#8 say it in clear.
  if (text.find("ENCRYPTED") != std::string::npos) return true;
  constexpr std::string_view kOpenSsh = "-----BEGIN OPENSSH PRIVATE KEY-----";
  const size_t start = text.find(kOpenSsh);
  if (start == std::string::npos) return false;
  // "openssh-key-v1", 0, then the cipher's name with its length in 4 bytes: within 48 bytes.
  std::string base64;
  for (size_t i = start + kOpenSsh.size(); i < text.size() && base64.size() < 64; ++i) {
    if (text[i] != '\n' && text[i] != '\r') base64 += text[i];
  }
  unsigned char bytes[48] = {};
  if (base64.size() < 64 ||
      EVP_DecodeBlock(bytes, reinterpret_cast<const unsigned char*>(base64.data()), 64) < 0) {
    return false;
  }
  constexpr size_t kCipher = 15;
  return std::string_view(reinterpret_cast<const char*>(bytes) + kCipher, 8) !=
         std::string_view("\0\0\0\4none", 8);
}

// Of a private key, or of what lies at the path itself or beside it: an agent has its private half.
std::string public_half(ssh_key key, const std::string& path) {
  ssh_key read = nullptr;
  std::error_code ignored;
  for (const std::string& file : {path + ".pub", path}) {
    if (key != nullptr || read != nullptr || !std::filesystem::exists(file, ignored)) continue;
    if (ssh_pki_import_pubkey_file(file.c_str(), &read) != SSH_OK) read = nullptr;
  }
  std::string text;
  char* base64 = nullptr;
  if ((key != nullptr || read != nullptr) &&
      ssh_pki_export_pubkey_base64(key != nullptr ? key : read, &base64) == SSH_OK) {
    text = base64;
    ssh_string_free_char(base64);
  }
  ssh_key_free(read);
  return text;
}

std::string decoded(const std::string& base64) {
  std::string bytes(base64.size() / 4 * 3, '\0');
  const int length = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                                     reinterpret_cast<const unsigned char*>(base64.data()),
                                     static_cast<int>(base64.size() / 4 * 4));
  if (length < 0) return {};
  const size_t padding = base64.ends_with("==") ? 2 : base64.ends_with('=') ? 1 : 0;
  return bytes.substr(0, static_cast<size_t>(length) - padding);
}

// The field at the front, with its length in 4 bytes before it, is taken off.
void skip_field(std::string_view& blob) {
  if (blob.size() < 4) return blob.remove_prefix(blob.size());
  size_t length = 0;
  for (size_t i = 0; i < 4; ++i) length = length << 8 | static_cast<unsigned char>(blob[i]);
  blob.remove_prefix(std::min(blob.size(), 4 + length));
}

// A key is its type and its numbers; a certificate its type, a nonce, the key's numbers and more.
// (ssh_key_cmp() of libssh 0.10 finds that they differ.)
bool is_certificate_of(const std::string& certificate, const std::string& public_key) {
  const std::string whole = decoded(certificate), bare = decoded(public_key);
  std::string_view numbers = bare, shown = whole;
  skip_field(numbers);
  skip_field(shown);
  skip_field(shown);
  return !numbers.empty() && shown.starts_with(numbers);
}

void load_private(const std::string& path, Identity& identity) {
  if (ssh_pki_import_privkey_file(path.c_str(), nullptr, nullptr, nullptr, &identity.key) ==
      SSH_OK) {
    identity.state = Identity::loaded;
    return;
  }
  identity.key = nullptr;
  identity.state = Identity::unreadable;
  try {
    if (wants_passphrase(read_file(path, kLargestKey))) identity.state = Identity::encrypted;
  } catch (const Error&) {
    // It stays unreadable.
  }
}

}  // namespace

Identities::~Identities() {
  for (auto& [path, identity] : loaded_) ssh_key_free(identity.key);
  for (auto& [paths, key] : certified_) ssh_key_free(key);
}

const Identity& Identities::get(const std::string& path) {
  const auto [entry, fresh] = loaded_.try_emplace(path);
  Identity& identity = entry->second;
  std::error_code ignored;
  if (!fresh) return identity;
  if (std::filesystem::exists(path, ignored)) load_private(path, identity);
  identity.public_key = public_half(identity.key, path);
  return identity;
}

const std::string& Identities::certificate(const std::string& path) {
  const auto [entry, fresh] = certificates_.try_emplace(path);
  std::error_code ignored;
  if (!fresh || !std::filesystem::exists(path, ignored)) return entry->second;
  try {
    // "ssh-ed25519-cert-v01@openssh.com AAAA... comment"
    std::istringstream words(read_file(path, kLargestKey));
    std::string type, base64;
    if (words >> type >> base64 && type.find("-cert-") != std::string::npos) entry->second = base64;
  } catch (const Error&) {
    // It stays none.
  }
  return entry->second;
}

ssh_key Identities::certified(const std::string& key, const std::string& certificate_path) {
  const auto [entry, fresh] = certified_.try_emplace({key, certificate_path}, nullptr);
  const Identity& identity = get(key);
  if (!fresh || identity.state != Identity::loaded ||
      !is_certificate_of(certificate(certificate_path), identity.public_key)) {
    return entry->second;
  }
  ssh_key read = nullptr;
  if (ssh_pki_import_cert_file(certificate_path.c_str(), &read) != SSH_OK) return nullptr;
  // One key shows one certificate.
  ssh_key own = ssh_key_dup(identity.key);
  if (own != nullptr && ssh_pki_copy_cert_to_privkey(read, own) == SSH_OK) {
    entry->second = own;
  } else {
    ssh_key_free(own);
  }
  ssh_key_free(read);
  return entry->second;
}

}  // namespace mtl::ssh
