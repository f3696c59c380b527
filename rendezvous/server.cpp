// The store's TCP server: one thread, one Session per connection. A session proves the token within
// the limit or is dropped; afterwards it reads one request, answers it, reads the next. A get() of
// an absent key parks the session until the key is set, its time is over or its client is gone.
//
// Asio is expensive to compile: it appears in this file and in client.cpp only.
#include <algorithm>
#include <array>
#include <csignal>
#include <fcntl.h>
#include <functional>
#include <list>
#include <map>
#include <thread>
#include <unordered_map>
#include <vector>

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <fmt/format.h>

#include "common/error.h"
#include "rendezvous/auth.h"
#include "rendezvous/protocol.h"
#include "rendezvous/store.h"
#include "rendezvous/table.h"

namespace mtl {

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// Connections that have not proved the token yet. Beyond it the oldest one of them goes: a true
// client needs milliseconds, so the old ones are those who never will.
constexpr size_t kMaxUnauthenticated = 256;
constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365);
// Out of descriptors: wait for some to be closed instead of spinning on accept.
constexpr std::chrono::milliseconds kAcceptPause{100};

// A peer whose machine vanished is noticed within about 30 s, whether we wait or write.
void tune(tcp::socket& socket) {
  const int fd = socket.native_handle();
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  const auto option = [fd](int level, int name, int value) {
    ::setsockopt(fd, level, name, &value, sizeof(value));
  };
  option(IPPROTO_TCP, TCP_NODELAY, 1);
  option(SOL_SOCKET, SO_KEEPALIVE, 1);
  option(IPPROTO_TCP, TCP_KEEPIDLE, 10);
  option(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  option(IPPROTO_TCP, TCP_KEEPCNT, 4);
  option(IPPROTO_TCP, TCP_USER_TIMEOUT, 30'000);
}

class Session;

// What the sessions share. Everything happens in the server's thread.
struct Room {
  explicit Room(const std::string& token) : proof_key(token) {}
  auth::Key proof_key;
  int64_t generation = 0;
  std::chrono::milliseconds auth_timeout;
  KeyTable table;
  std::unordered_multimap<std::string, std::weak_ptr<Session>> waiting;
  std::list<std::weak_ptr<Session>> unauthenticated;  // oldest first

  void changed(const std::string& key);
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(tcp::socket socket, Room& room)
      : socket_(std::move(socket)), timer_(socket_.get_executor()), room_(room) {}

  void start() {
    tune(socket_);
    place_ = room_.unauthenticated.insert(room_.unauthenticated.end(), weak_from_this());
    while (room_.unauthenticated.size() > kMaxUnauthenticated) {
      const std::shared_ptr<Session> oldest = room_.unauthenticated.front().lock();
      if (oldest) {
        oldest->close();
      } else {
        room_.unauthenticated.pop_front();
      }
    }
    timer_.expires_after(room_.auth_timeout);
    timer_.async_wait([self = shared_from_this()](error_code error) {
      if (!error && !self->authenticated_) self->close();
    });
    read_frame([this] { on_hello(); });
  }

  // The key that this session waits for has a value now.
  void answer_wait(const std::string& value) {
    if (!waiting_) return;
    waiting_ = false;
    timer_.cancel();
    error_code ignored;
    socket_.cancel(ignored);  // the watch for a client that leaves
    reply({.status = wire::Status::ok, .value = value});
  }

 private:
  void close() {
    leave_waiting_room();
    if (!authenticated_ && !closed_) room_.unauthenticated.erase(place_);
    closed_ = true;
    timer_.cancel();
    error_code ignored;
    socket_.close(ignored);
  }

  void leave_waiting_room() {
    if (!waiting_) return;
    waiting_ = false;
    const auto [first, last] = room_.waiting.equal_range(request_.key);
    for (auto it = first; it != last; ++it) {
      if (it->second.lock().get() == this) {
        room_.waiting.erase(it);
        return;
      }
    }
  }

  // Reads one frame into payload_, then calls `next`; closes on anything that is not a frame.
  void read_frame(std::function<void()> next) {
    asio::async_read(
        socket_, asio::buffer(header_),
        [this, self = shared_from_this(), next = std::move(next)](error_code error, size_t) {
          if (closed_) return;
          const size_t limit = authenticated_ ? wire::kMaxFrame : wire::kMaxHandshakeFrame;
          const auto length = wire::frame_length({header_.data(), header_.size()}, limit);
          if (error || !length) return close();
          payload_.resize(*length);
          asio::async_read(socket_, asio::buffer(payload_),
                           [this, self, next](error_code body_error, size_t) {
                             if (closed_) return;
                             if (body_error) return close();
                             next();
                           });
        });
  }

  void write_frame(const std::string& payload, std::function<void()> next) {
    out_ = wire::frame(payload);
    asio::async_write(
        socket_, asio::buffer(out_),
        [this, self = shared_from_this(), next = std::move(next)](error_code error, size_t) {
          if (closed_) return;
          if (error) return close();
          next();
        });
  }

  void on_hello() {
    const auto hello = wire::decode_hello(payload_);
    if (!hello || hello->service != wire::Service::store) return close();
    hello_ = *hello;
    if (hello_.version != wire::kVersion) {
      return write_frame(
          wire::encode(wire::Welcome{.verdict = wire::Verdict::wrong_version, .generation = 0}),
          [this] { close(); });
    }
    challenge_.nonce = auth::random_nonce();
    write_frame(wire::encode(challenge_), [this] { read_frame([this] { on_proof(); }); });
  }

  void on_proof() {
    const auto proof = wire::decode_proof(payload_);
    if (!proof) return close();
    wire::Welcome welcome;
    if (!auth::equal(proof->mac, auth::client_proof(room_.proof_key, hello_, challenge_))) {
      // Nothing about the job is told to somebody without the token.
      welcome.verdict = wire::Verdict::wrong_token;
      return write_frame(wire::encode(welcome), [this] { close(); });
    }
    welcome.generation = room_.generation;
    if (hello_.generation != room_.generation) welcome.verdict = wire::Verdict::wrong_generation;
    welcome.mac = auth::server_proof(room_.proof_key, hello_, challenge_, welcome);
    if (welcome.verdict != wire::Verdict::accepted) {
      return write_frame(wire::encode(welcome), [this] { close(); });
    }
    authenticated_ = true;
    room_.unauthenticated.erase(place_);
    timer_.cancel();
    write_frame(wire::encode(welcome), [this] { next_request(); });
  }

  void next_request() {
    read_frame([this] { on_request(); });
  }

  void reply(const wire::Reply& message) {
    write_frame(wire::encode(message), [this] { next_request(); });
  }

  void on_request() {
    auto request = wire::decode_request(payload_);
    if (!request) return close();
    request_ = std::move(*request);
    // The buffer of one large value is not kept for the life of the connection.
    payload_ = std::string();
    switch (request_.op) {
      case wire::Op::set:
        room_.table.set(request_.key, std::move(request_.value));
        reply({});
        room_.changed(request_.key);
        break;
      case wire::Op::get:
        if (const std::string* value = room_.table.find(request_.key)) {
          reply({.status = wire::Status::ok, .value = *value});
        } else {
          wait_for_key();
        }
        break;
      case wire::Op::add: {
        const auto sum = room_.table.add(request_.key, request_.amount);
        if (!sum) return reply({.status = wire::Status::not_a_number, .value = {}});
        reply({.status = wire::Status::ok, .value = {}, .number = *sum});
        room_.changed(request_.key);
        break;
      }
      case wire::Op::compare_set:
        reply({.status = wire::Status::ok,
               .value = room_.table.compare_set(request_.key, request_.expected, request_.value)});
        room_.changed(request_.key);
        break;
    }
  }

  void wait_for_key() {
    waiting_ = true;
    room_.waiting.emplace(request_.key, weak_from_this());
    timer_.expires_after(std::clamp(std::chrono::milliseconds(request_.timeout_ms), {}, kLongest));
    timer_.async_wait([this, self = shared_from_this()](error_code error) {
      if (error || !waiting_) return;
      leave_waiting_room();
      error_code ignored;
      socket_.cancel(ignored);
      reply({.status = wire::Status::timeout, .value = {}});
    });
    // A client may send nothing while it waits: whatever arrives now is its end.
    socket_.async_wait(tcp::socket::wait_read, [this, self = shared_from_this()](error_code error) {
      if (!error && waiting_) close();
    });
  }

  tcp::socket socket_;
  asio::steady_timer timer_;  // to authenticate; later of the get() under way
  Room& room_;
  std::list<std::weak_ptr<Session>>::iterator place_;
  std::array<char, wire::kLengthBytes> header_ = {};
  std::string payload_;
  std::string out_;
  wire::Hello hello_;
  wire::Challenge challenge_;
  wire::Request request_;
  bool authenticated_ = false;
  bool waiting_ = false;
  bool closed_ = false;
};

void Room::changed(const std::string& key) {
  const std::string* value = table.find(key);
  if (value == nullptr) return;
  const auto [first, last] = waiting.equal_range(key);
  if (first == last) return;
  std::vector<std::shared_ptr<Session>> sessions;
  for (auto it = first; it != last; ++it) {
    if (auto session = it->second.lock()) sessions.push_back(std::move(session));
  }
  waiting.erase(first, last);
  for (const auto& session : sessions) session->answer_wait(*value);
}

// "[::1]" is how people write an IPv6 address beside a port.
std::string bare(const std::string& address) {
  const bool bracketed = address.size() > 2 && address.front() == '[' && address.back() == ']';
  return bracketed ? address.substr(1, address.size() - 2) : address;
}

[[noreturn]] void throw_cannot_listen(const StoreServerOptions& options, const error_code& error) {
  const bool taken = error == asio::error::address_in_use;
  throw Error(Exit::environment,
              {.code = "rendezvous.port",
               .what = fmt::format("cannot listen on {} port {}: {}", options.address, options.port,
                                   error.message()),
               .help = taken ? "another program (perhaps an earlier run) has the port; choose "
                               "another main_process_port, or 0 for a free one"
                             : "the address must be one of this machine; see: ip address"});
}

class Server final : public StoreServer {
 public:
  explicit Server(const StoreServerOptions& options)
      : room_(options.token), acceptor_(io_), pause_(io_) {
    room_.generation = options.generation;
    room_.auth_timeout = options.auth_timeout;
    error_code error;
    tcp::resolver resolver(io_);
    const auto found = resolver.resolve(bare(options.address), std::to_string(options.port),
                                        tcp::resolver::passive, error);
    if (error || found.empty()) {
      throw Error(Exit::environment,
                  {.code = "rendezvous.address",
                   .what = fmt::format("cannot resolve '{}' to listen on it: {}", options.address,
                                       error.message()),
                   .help = "give an address of this machine, e.g. its IP, 0.0.0.0 or ::"});
    }
    const tcp::endpoint endpoint = found.begin()->endpoint();
    acceptor_.open(endpoint.protocol(), error);
    if (error) throw_cannot_listen(options, error);
    ::fcntl(acceptor_.native_handle(), F_SETFD, FD_CLOEXEC);
    // Without it the port of a job that has just ended is refused for a minute.
    acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (endpoint.address().is_v6()) {
      acceptor_.set_option(asio::ip::v6_only(!endpoint.address().is_unspecified()), error);
    }
    acceptor_.bind(endpoint, error);
    if (error) throw_cannot_listen(options, error);
    acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error) throw_cannot_listen(options, error);
    port_ = acceptor_.local_endpoint().port();
    accept();
    start_thread();
  }

  ~Server() override {
    io_.stop();
    thread_.join();
  }

  uint16_t port() const override { return port_; }

 private:
  void accept() {
    acceptor_.async_accept([this](error_code error, tcp::socket socket) {
      if (error == asio::error::operation_aborted) return;
      if (!error) std::make_shared<Session>(std::move(socket), room_)->start();
      if (error == asio::error::no_descriptors || error == asio::error::no_memory ||
          error == asio::error::no_buffer_space ||
          error == error_code(ENFILE, boost::system::system_category())) {
        pause_.expires_after(kAcceptPause);
        pause_.async_wait([this](error_code cancelled) {
          if (!cancelled) accept();
        });
        return;
      }
      accept();
    });
  }

  // Signals are the business of the program's own threads.
  void start_thread() {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      thread_ = std::thread([this] { run(); });
    } catch (...) {
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      throw;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  // One session's failure (no memory, no random bytes) must not end the service of the others.
  void run() {
    while (!io_.stopped()) {
      try {
        io_.run();
      } catch (const std::exception&) {
        // The session's handler is gone, and with it the last reference to the session.
      }
    }
  }

  Room room_;  // outlives the sessions, which io_ destroys
  asio::io_context io_;
  tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  uint16_t port_ = 0;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<StoreServer> serve_store(const StoreServerOptions& options) {
  return std::make_unique<Server>(options);
}

}  // namespace mtl
