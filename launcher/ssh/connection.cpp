// A connection from the server's greeting on: keys, proofs, and what is read and written then. How
// it gets its socket is in connection_attempts.cpp.
#include "launcher/ssh/connection.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <fmt/format.h>

#include "launcher/ssh/messages.h"
#include "rendezvous/sockets.h"

namespace mtl::ssh {

namespace {

// A pump takes at most so many reads of libssh (4 KiB each), so that no host holds the loop.
constexpr int kReadsAtOnce = 32;

// The host keys that are asked for: those of known types first.
std::string host_key_order(const HostSettings& settings, const std::vector<std::string>& known) {
  if (!settings.host_key_algorithms.empty()) return settings.host_key_algorithms;
  std::string order;
  const auto add = [&](const std::string& type) {
    const std::string names = type == "ssh-rsa" ? "rsa-sha2-512,rsa-sha2-256" : type;
    if (("," + order + ",").find("," + names + ",") != std::string::npos) return;
    if (!order.empty()) order += ',';
    order += names;
  };
  const char* const all[] = {"ssh-ed25519",
                             "ecdsa-sha2-nistp256",
                             "ecdsa-sha2-nistp384",
                             "ecdsa-sha2-nistp521",
                             "sk-ssh-ed25519@openssh.com",
                             "sk-ecdsa-sha2-nistp256@openssh.com",
                             "ssh-rsa"};
  for (const char* type : all) {
    for (const std::string& one : known) {
      if (one == type) add(one);
    }
  }
  for (const char* type : all) add(type);
  return order;
}

bool server_key(ssh_session session, HostKey& key, std::string& fingerprint) {
  ssh_key raw = nullptr;
  if (ssh_get_server_publickey(session, &raw) != SSH_OK) return false;
  const char* type = ssh_key_type_to_char(ssh_key_type(raw));
  key.type = type != nullptr ? type : "";
  if (char* base64 = nullptr; ssh_pki_export_pubkey_base64(raw, &base64) == SSH_OK) {
    key.base64 = base64;
    ssh_string_free_char(base64);
  }
  unsigned char* hash = nullptr;
  size_t size = 0;
  if (ssh_get_publickey_hash(raw, SSH_PUBLICKEY_HASH_SHA256, &hash, &size) == SSH_OK) {
    if (char* text = ssh_get_fingerprint_hash(SSH_PUBLICKEY_HASH_SHA256, hash, size)) {
      fingerprint = text;
      ssh_string_free_char(text);
    }
    ssh_clean_pubkey_hash(&hash);
  }
  ssh_key_free(raw);
  return !key.base64.empty();
}

}  // namespace

Connection::Connection(Shared& shared, const HostSettings& settings, User& user)
    : shared_(shared), settings_(settings), user_(user) {}

Connection::~Connection() {
  state_ = State::over;
  if (talk_) shared_.agent.abandon(talk_);
  drop_attempts();
  close_watch();
  if (event_ != nullptr) {
    ssh_event_remove_session(event_, session_);
    ssh_event_free(event_);
  }
  // Not ssh_disconnect(): it would leave a socket that was given to libssh open for ever.
  ssh_free(session_);
}

void Connection::close_watch() {
  if (watch_ == 0) return;
  // libssh closes its socket where it meets an error.
  if (session_ != nullptr && !socket_ && ssh_get_fd(session_) == SSH_INVALID_SOCKET) {
    shared_.loop.forget(watch_);
  } else {
    shared_.loop.unwatch(watch_);
  }
  watch_ = 0;
}

std::string Connection::waiting_for() const {
  switch (state_) {
    case State::resolving:
      return fmt::format("the address of '{}'", settings_.host_name);
    case State::connecting:
      return fmt::format("a connection to {}", targets_[last_target_].address.text());
    case State::greeting:
      if (session_ != nullptr && ssh_get_serverbanner(session_) != nullptr) {
        return "the exchange of keys";
      }
      return "the server's greeting: it took the connection and says nothing";
    case State::agent:
      return fmt::format("the ssh agent at {}", settings_.agent);
    case State::ready:
      return "the command's first line";
    default:
      return "authentication";
  }
}

bool Connection::on_lossy_line() const {
  if (state_ < State::greeting || state_ == State::over || session_ == nullptr) return false;
  // The session is another thread's then, and a person may be asked to touch a key: once is enough.
  if (state_ == State::agent) return false;
  tcp_info info{};
  socklen_t size = sizeof info;
  return getsockopt(ssh_get_fd(session_), IPPROTO_TCP, TCP_INFO, &info, &size) == 0 &&
         info.tcpi_total_retrans > 0;
}

void Connection::open_session() {
  state_ = State::greeting;
  session_ = ssh_new();
  if (session_ == nullptr) return fail({refused(settings_, "", "no memory")});
  const bool no = false;
  const int port = settings_.port;
  const int fd = socket_.get();
  ssh_set_blocking(session_, 0);
  // The configuration is ours: libssh must read neither its own nor known_hosts.
  ssh_options_set(session_, SSH_OPTIONS_PROCESS_CONFIG, &no);
  ssh_options_set(session_, SSH_OPTIONS_KNOWNHOSTS, "/dev/null");
  ssh_options_set(session_, SSH_OPTIONS_GLOBAL_KNOWNHOSTS, "/dev/null");
  if (ssh_options_set(session_, SSH_OPTIONS_HOST, settings_.host_name.c_str()) != SSH_OK) {
    ssh_options_set(session_, SSH_OPTIONS_HOST, "host");  // for libssh's own messages only
  }
  ssh_options_set(session_, SSH_OPTIONS_PORT, &port);
  ssh_options_set(session_, SSH_OPTIONS_USER, settings_.user.c_str());
  ssh_options_set(session_, SSH_OPTIONS_FD, &fd);
  const std::string keys = host_key_order(settings_, shared_.known_hosts.types(settings_));
  const std::pair<ssh_options_e, const std::string*> lists[] = {
      {SSH_OPTIONS_HOSTKEYS, &keys},
      {SSH_OPTIONS_CIPHERS_C_S, &settings_.ciphers},
      {SSH_OPTIONS_CIPHERS_S_C, &settings_.ciphers},
      {SSH_OPTIONS_HMAC_C_S, &settings_.macs},
      {SSH_OPTIONS_HMAC_S_C, &settings_.macs},
      {SSH_OPTIONS_KEY_EXCHANGE, &settings_.kex},
      {SSH_OPTIONS_PUBLICKEY_ACCEPTED_TYPES, &settings_.pubkey_algorithms}};
  for (const auto& [option, value] : lists) {
    if (!value->empty() && ssh_options_set(session_, option, value->c_str()) != SSH_OK) {
      return fail({unusable_algorithms(settings_, *value)});
    }
  }
  if (settings_.compression) ssh_options_set(session_, SSH_OPTIONS_COMPRESSION, "yes");
  ssh_set_counters(session_, &raw_, nullptr);
  watch_ = shared_.loop.watch(socket_.release(), EPOLLIN, [this](uint32_t) { on_socket(); });
  step();
}

void Connection::on_socket() {
  if (state_ == State::ready) return pump();
  step();
}

void Connection::step() {
  for (;;) {
    switch (state_) {
      case State::greeting: {
        const int rc = ssh_connect(session_);
        // libssh makes the socket blocking once it sees it connected; a host that is stuck with a
        // full socket would then stop the loop in send().
        if (const int fd = ssh_get_fd(session_); fd >= 0) make_nonblocking(fd);
        if (rc == SSH_AGAIN) return rearm();
        if (rc != SSH_OK) return fail(greeting_failure());
        state_ = State::keys;
        break;
      }
      case State::keys:
        if (!check_host_key()) return;
        state_ = State::asking;
        break;
      case State::asking: {
        const int rc = ssh_userauth_none(session_, nullptr);
        if (rc == SSH_AUTH_AGAIN && ssh_is_connected(session_)) return rearm();
        if (rc == SSH_AUTH_ERROR || rc == SSH_AUTH_AGAIN)
          return fail(auth_failure(ssh_get_error(session_)));
        auth_methods_ = ssh_userauth_list(session_, nullptr);
        state_ = State::identities;
        if (rc != SSH_AUTH_SUCCESS) find_offers();
        if (rc == SSH_AUTH_SUCCESS) {
          state_ = State::ready;
        } else if ((auth_methods_ & SSH_AUTH_METHOD_PUBLICKEY) == 0) {
          return fail(auth_failure(""));
        }
        break;
      }
      case State::identities: {
        if (next_offer_ == offers_.size()) return ask_agent();
        const Offer& offer = offers_[next_offer_];
        const int rc = ssh_userauth_publickey(session_, nullptr, offer.key);
        if (rc == SSH_AUTH_AGAIN && ssh_is_connected(session_)) return rearm();
        ++next_offer_;
        tried_.push_back(offer.path);
        if (rc == SSH_AUTH_SUCCESS) {
          state_ = State::ready;
        } else if (rc == SSH_AUTH_PARTIAL) {
          auth_methods_ = ssh_userauth_list(session_, nullptr);
          return fail(auth_failure("the key is right, but the server wants more than that"));
        } else if (!ssh_is_connected(session_)) {
          return fail(auth_failure(ssh_get_error(session_)));
        }
        break;
      }
      case State::ready:
        event_ = ssh_event_new();
        if (event_ == nullptr || ssh_event_add_session(event_, session_) != SSH_OK) {
          return fail({refused(settings_, "", "no memory")});
        }
        rearm();
        shared_.loop.defer([weak = weak_from_this()] {
          if (const auto self = weak.lock()) self->user_.ready();
        });
        return;
      default:
        return;
    }
  }
}

bool Connection::check_host_key() {
  HostKey key;
  std::string fingerprint;
  if (!server_key(session_, key, fingerprint)) {
    fail({host_key_unreadable(settings_, ssh_get_error(session_))});
    return false;
  }
  const KeyCheck check = shared_.known_hosts.check(settings_, key);
  if (check.result == KeyCheck::ok) return true;
  if (check.result != KeyCheck::unknown) {
    fail({host_key_changed(settings_, key, fingerprint, check)});
    return false;
  }
  if (settings_.key_policy == KeyPolicy::strict) {
    fail({host_key_unknown(settings_, key, fingerprint, check, "")});
    return false;
  }
  const std::string problem = shared_.known_hosts.add(settings_, key);
  if (problem.empty()) return true;
  fail({host_key_unknown(settings_, key, fingerprint, check, problem)});
  return false;
}

// As OpenSSH: those of a key lie beside it, under its name.
std::vector<std::string> Connection::certificate_paths() const {
  std::vector<std::string> paths = settings_.certificate_files;
  for (const std::string& path : settings_.identity_files) {
    const bool is_public = path.ends_with(".pub");
    std::string beside = path.substr(0, path.size() - (is_public ? 4 : 0)) + "-cert.pub";
    // One that is named as well is offered once: a server counts what it refuses.
    if (std::find(paths.begin(), paths.end(), beside) == paths.end()) {
      paths.push_back(std::move(beside));
    }
  }
  return paths;
}

// Certificates first, as OpenSSH: where one is wanted, bare keys would use up the server's
// patience.
void Connection::find_offers() {
  std::vector<Offer> bare;
  for (const std::string& path : settings_.identity_files) {
    const Identity& identity = shared_.identities.get(path);
    if (identity.state == Identity::loaded) {
      bare.push_back({.path = path, .key = identity.key, .certificate = {}});
    } else if (identity.state == Identity::encrypted) {
      locked_.push_back(path);
    } else if (identity.state == Identity::unreadable || settings_.identities_given) {
      unreadable_.push_back(path);
    }
  }
  for (const std::string& path : certificate_paths()) {
    for (const Offer& one : bare) {
      const ssh_key key = shared_.identities.certified(one.path, path);
      if (key == nullptr) continue;
      offers_.push_back(
          {.path = path, .key = key, .certificate = shared_.identities.certificate(path)});
    }
  }
  offers_.insert(offers_.end(), bare.begin(), bare.end());
}

void Connection::ask_agent() {
  AgentKeys keys{.first = {}, .refused = {}, .only = settings_.identities_only};
  for (const std::string& path : certificate_paths()) {
    const std::string& certificate = shared_.identities.certificate(path);
    const bool refused = std::any_of(offers_.begin(), offers_.end(), [&](const Offer& offer) {
      return offer.certificate == certificate;
    });
    if (!certificate.empty()) (refused ? keys.refused : keys.first).push_back(certificate);
  }
  for (const std::string& path : settings_.identity_files) {
    const Identity& identity = shared_.identities.get(path);
    (identity.state == Identity::loaded ? keys.refused : keys.first).push_back(identity.public_key);
  }
  if (settings_.agent.empty() || (settings_.identities_only && keys.first.empty())) {
    return fail(auth_failure(""));
  }
  close_watch();
  const auto done = [this](int outcome) {
    talk_.reset();
    tried_.push_back("the keys of the ssh agent");
    if (ssh_get_fd(session_) == SSH_INVALID_SOCKET) {
      return fail(auth_failure(ssh_get_error(session_)));
    }
    watch_ = shared_.loop.watch(ssh_get_fd(session_), EPOLLIN, [this](uint32_t) { on_socket(); });
    if (outcome != SSH_AUTH_SUCCESS) {
      return fail(auth_failure(outcome == SSH_AUTH_ERROR ? ssh_get_error(session_) : ""));
    }
    state_ = State::ready;
    step();
  };
  talk_ = shared_.agent.start(session_, settings_.agent, std::move(keys), agent_problem_, done);
  if (!talk_) return fail(auth_failure(""));
  state_ = State::agent;
}

void Connection::pump() {
  bool open = true;
  for (int i = 0; i < kReadsAtOnce; ++i) {
    const uint64_t before = raw_.in_bytes;
    ssh_event_dopoll(event_, 0);
    open = ssh_is_connected(session_) && ssh_get_fd(session_) != SSH_INVALID_SOCKET;
    if (!open || raw_.in_bytes == before || reading_paused_) break;
  }
  user_.activity();
  if (state_ != State::ready) return;
  if (!open) return lose();
  rearm();
}

void Connection::pause_reading(bool paused) {
  if (reading_paused_ == paused) return;
  reading_paused_ = paused;
  rearm();
}

void Connection::rearm() {
  if (watch_ == 0) return;
  if (ssh_get_fd(session_) == SSH_INVALID_SOCKET) return;  // seen by whoever called libssh
  const bool write = (ssh_get_poll_flags(session_) & SSH_WRITE_PENDING) != 0;
  shared_.loop.change(
      watch_, (reading_paused_ ? 0U : unsigned{EPOLLIN}) | (write ? unsigned{EPOLLOUT} : 0U));
}

void Connection::fail(Failure failure) {
  close_watch();
  state_ = State::over;
  shared_.loop.defer([weak = weak_from_this(), failure = std::move(failure)] {
    if (const auto self = weak.lock()) self->user_.failed(failure);
  });
}

void Connection::lose() {
  std::string why = ssh_get_error(session_);
  close_watch();
  state_ = State::over;
  shared_.loop.defer([weak = weak_from_this(), why = std::move(why)] {
    if (const auto self = weak.lock()) self->user_.lost(why);
  });
}

Failure Connection::greeting_failure() {
  const std::string reason = ssh_get_error(session_);
  const char* banner = ssh_get_serverbanner(session_);
  const bool greeted = banner != nullptr && strncmp(banner, "SSH-", 4) == 0;
  if (!greeted && proxy_.pid() > 0) return proxy_failure();
  // sshd drops what exceeds its MaxStartups, some versions with a word about it.
  const bool dropped =
      !greeted && (raw_.in_bytes == 0 || reason.find("Exceeded") != std::string::npos);
  return {greeting_failed(settings_, reason, greeted, dropped), dropped};
}

Failure Connection::auth_failure(const std::string& cut) {
  return {not_authenticated(settings_, {.methods = auth_methods_,
                                        .tried = tried_,
                                        .locked = locked_,
                                        .unreadable = unreadable_,
                                        .agent_problem = agent_problem_,
                                        .reason = cut})};
}

}  // namespace mtl::ssh
