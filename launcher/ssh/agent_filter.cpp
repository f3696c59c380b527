// The protocol of agents (draft-miller-ssh-agent): a length in 4 bytes, most significant first, a
// type, and what belongs to it. Each question has one answer.
#include "launcher/ssh/agent_filter.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <optional>
#include <string_view>

#include <sys/socket.h>

#include <openssl/evp.h>

namespace mtl::ssh {

namespace {

constexpr char kIdentitiesAnswer = 12;
constexpr size_t kLongest = 256 * 1024;  // as the agents' own limit

uint32_t length_of(std::string_view bytes) {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

std::string as_length(size_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift);
  return bytes;
}

// A length and as many bytes.
std::optional<std::string_view> take_string(std::string_view& rest) {
  if (rest.size() < 4 || rest.size() - 4 < length_of(rest)) return std::nullopt;
  const std::string_view string = rest.substr(4, length_of(rest));
  rest.remove_prefix(4 + string.size());
  return string;
}

std::string as_base64(std::string_view bytes) {
  std::string text(4 * ((bytes.size() + 2) / 3) + 1, '\0');
  text.resize(static_cast<size_t>(EVP_EncodeBlock(
      reinterpret_cast<unsigned char*>(text.data()),
      reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()))));
  return text;
}

std::optional<std::string> receive_message(int socket) {
  const auto read = [socket](std::string& bytes) {
    size_t have = 0;
    while (have < bytes.size()) {
      const ssize_t got = recv(socket, bytes.data() + have, bytes.size() - have, 0);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      have += static_cast<size_t>(got);
    }
    return true;
  };
  std::string length(4, '\0');
  if (!read(length) || length_of(length) > kLongest) return std::nullopt;
  std::string message(length_of(length), '\0');
  if (!read(message)) return std::nullopt;
  return message;
}

bool send_message(int socket, const std::string& message) {
  const std::string bytes = as_length(message.size()) + message;
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t count = ::send(socket, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return false;
    sent += static_cast<size_t>(count);
  }
  return true;
}

}  // namespace

std::string choose_keys(const std::string& message, const AgentKeys& keys) {
  if (message.size() < 5 || message[0] != kIdentitiesAnswer) return message;
  struct Key {
    size_t place;  // among the first, or behind them
    std::string_view bytes;
  };
  std::vector<Key> chosen;
  std::string_view rest = std::string_view(message).substr(5);
  for (uint32_t left = length_of(std::string_view(message).substr(1)); left > 0; --left) {
    const char* begin = rest.data();
    const auto blob = take_string(rest);
    const auto comment = blob ? take_string(rest) : std::nullopt;
    if (!comment) return message;
    const std::string key = as_base64(*blob);
    const auto is_in = [&](const std::vector<std::string>& list) {
      return static_cast<size_t>(std::find(list.begin(), list.end(), key) - list.begin());
    };
    const size_t place = is_in(keys.first);
    if (keys.only && place == keys.first.size()) continue;
    if (is_in(keys.refused) < keys.refused.size()) continue;
    chosen.push_back({place, {begin, static_cast<size_t>(rest.data() - begin)}});
  }
  std::stable_sort(chosen.begin(), chosen.end(),
                   [](const Key& a, const Key& b) { return a.place < b.place; });
  std::string answer = kIdentitiesAnswer + as_length(chosen.size());
  for (const Key& key : chosen) answer += key.bytes;
  return answer;
}

AgentFilter::AgentFilter(int agent, int client, AgentKeys keys)
    : agent_(agent), client_(client), thread_([this, keys = std::move(keys)] {
        for (;;) {
          const auto question = receive_message(client_);
          if (!question || !send_message(agent_, *question)) break;
          const auto answer = receive_message(agent_);
          if (!answer || !send_message(client_, choose_keys(*answer, keys))) break;
        }
        end();
      }) {}

AgentFilter::~AgentFilter() {
  end();
  thread_.join();
}

void AgentFilter::end() {
  shutdown(agent_, SHUT_RDWR);
  shutdown(client_, SHUT_RDWR);
}

}  // namespace mtl::ssh
