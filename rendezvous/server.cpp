// The store's TCP server: one thread, one Session per connection. A session proves the token within
// the limit or is dropped; afterwards it reads one request, answers it, reads the next. A request
// that cannot be answered yet (a get() of an absent key, a barrier) parks the session until what it
// waits for has changed, its time is over or its client is gone.
//
// Asio is expensive to compile: it appears in this file, client.cpp and the link's files only.
#include <algorithm>
#include <array>
#include <cerrno>
#include <functional>
#include <list>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>

#include "common/error.h"
#include "common/quiet_threads.h"
#include "rendezvous/auth.h"
#include "rendezvous/longest_wait.h"
#include "rendezvous/protocol.h"
#include "rendezvous/sockets.h"
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
// Out of descriptors: wait for some to be closed instead of spinning on accept.
constexpr std::chrono::milliseconds kAcceptPause{100};

// A peer whose machine vanished is noticed within about 30 s, whether we wait or write.
constexpr std::chrono::milliseconds kUserTimeout{30'000};

class Session;

// What the sessions share. Everything happens in the server's thread.
struct Room {
  explicit Room(const std::string& token) : proof_key(token) {}
  auth::Key proof_key;
  int64_t generation = 0;
  std::chrono::milliseconds auth_timeout;
  KeyTable table;
  uint64_t calls = 0;                                                    // so far
  std::unordered_multimap<std::string, std::weak_ptr<Session>> waiting;  // by channel
  std::list<std::weak_ptr<Session>> unauthenticated;                     // oldest first

  // After anything that may have changed the table: those who wait for it are tried again.
  void serve_changes();
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(tcp::socket socket, Room& room)
      : socket_(std::move(socket)), timer_(socket_.get_executor()), room_(room) {}

  void start() {
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

  // What this session waits for has changed; it is no longer in the waiting room.
  void try_again() {
    if (!waiting_) return;
    KeyTable::Outcome outcome = room_.table.retry(request_, call_);
    if (!outcome.reply) {
      channel_ = std::move(outcome.channel);
      room_.waiting.emplace(channel_, weak_from_this());
      return;
    }
    waiting_ = false;
    timer_.cancel();
    error_code ignored;
    socket_.cancel(ignored);  // the watch for a client that leaves
    reply(*outcome.reply);
  }

 private:
  void close() {
    if (waiting_) room_.table.forget(request_, call_);
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
    const auto [first, last] = room_.waiting.equal_range(channel_);
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
    call_ = ++room_.calls;
    KeyTable::Outcome outcome = room_.table.begin(request_, call_);
    if (outcome.reply) {
      reply(*outcome.reply);
    } else {
      wait_for(std::move(outcome.channel));
    }
    room_.serve_changes();
  }

  void wait_for(std::string channel) {
    waiting_ = true;
    channel_ = std::move(channel);
    room_.waiting.emplace(channel_, weak_from_this());
    timer_.expires_after(
        std::clamp(std::chrono::milliseconds(request_.timeout_ms), {}, kLongestWait));
    timer_.async_wait([this, self = shared_from_this()](error_code error) {
      if (error || !waiting_) return;
      leave_waiting_room();
      error_code ignored;
      socket_.cancel(ignored);
      reply(room_.table.give_up(request_, call_));
    });
    // A client may send nothing while it waits: whatever arrives now is its end.
    socket_.async_wait(tcp::socket::wait_read, [this, self = shared_from_this()](error_code error) {
      if (!error && waiting_) close();
    });
  }

  tcp::socket socket_;
  asio::steady_timer timer_;  // to authenticate; later of the request that waits
  Room& room_;
  std::list<std::weak_ptr<Session>>::iterator place_;
  std::array<char, wire::kLengthBytes> header_ = {};
  std::string payload_;
  std::string out_;
  wire::Hello hello_;
  wire::Challenge challenge_;
  wire::Request request_;
  uint64_t call_ = 0;    // request_'s
  std::string channel_;  // that request_ waits for
  bool authenticated_ = false;
  bool waiting_ = false;
  bool closed_ = false;
};

void Room::serve_changes() {
  for (;;) {
    const std::vector<std::string> changed = table.take_changed();
    if (changed.empty()) return;
    for (const std::string& channel : changed) {
      const auto [first, last] = waiting.equal_range(channel);
      if (first == last) continue;
      std::vector<std::shared_ptr<Session>> sessions;
      for (auto it = first; it != last; ++it) {
        if (auto session = it->second.lock()) sessions.push_back(std::move(session));
      }
      waiting.erase(first, last);
      for (const auto& session : sessions) session->try_again();
    }
  }
}

class Server final : public StoreServer {
 public:
  explicit Server(const StoreServerOptions& options)
      : room_(options.token), listener_(io_), pause_(io_) {
    room_.generation = options.generation;
    room_.auth_timeout = options.auth_timeout;
    Fd listener = net::listen_on(options.address, options.port, kUserTimeout);
    port_ = net::port_of(listener.get());
    listener_.assign(listener.release());
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
    listener_.async_wait(asio::posix::stream_descriptor::wait_read, [this](error_code error) {
      if (error) return;
      Fd fd = net::accept_one(listener_.native_handle());
      if (!fd && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)) {
        pause_.expires_after(kAcceptPause);
        pause_.async_wait([this](error_code cancelled) {
          if (!cancelled) accept();
        });
        return;
      }
      if (fd) {
        tcp::socket socket(io_);
        socket.assign(tcp::v4(), fd.get(), error);  // the family is of no matter any more
        if (!error) {
          fd.release();
          std::make_shared<Session>(std::move(socket), room_)->start();
        }
      }
      accept();
    });
  }

  void start_thread() {
    const SignalsBlocked for_the_thread;
    thread_ = std::thread([this] { run(); });
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
  asio::posix::stream_descriptor listener_;
  asio::steady_timer pause_;
  uint16_t port_ = 0;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<StoreServer> serve_store(const StoreServerOptions& options) {
  return std::make_unique<Server>(options);
}

}  // namespace mtl
