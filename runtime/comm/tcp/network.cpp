// One thread, one coroutine per connection until it is handed over. Asio is expensive to compile:
// it appears in this file only.
#include "runtime/comm/tcp/network.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <fcntl.h>
#include <list>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <sys/socket.h>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "rendezvous/auth.h"
#include "rendezvous/protocol.h"
#include "rendezvous/sockets.h"

namespace mtl::tcp {

namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using boost::system::system_error;
using Socket = asio::ip::tcp::socket;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;
using std::chrono::milliseconds;

// For a connection to prove the token. Beyond the number of those under way the oldest goes: a true
// peer needs milliseconds.
constexpr milliseconds kProofLimit = 10s;
constexpr size_t kMaxUnproven = 1024;
// Out of descriptors: wait for some to be closed instead of spinning on accept.
constexpr milliseconds kAcceptPause = 100ms;
// A peer listens before we learn its address: it answers, or something is wrong.
constexpr milliseconds kConnectPatience = 30s;
constexpr milliseconds kAttempt = 2s;
constexpr milliseconds kBetweenAttempts = 20ms;
constexpr size_t kMaxControlFrame = 1 << 16;

// A peer whose machine vanished is noticed within about 30 s, whether we wait or write.
void tune(Socket& socket) {
  const int fd = socket.native_handle();
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  net::tune(fd, 30s);
}

// Between ranks of one host that TCP joins all the same (containers), what is under way should
// still be in the cache when it is read: half the time for large tensors. Across a network the
// kernel finds the size that fills the line.
void keep_in_cache(Socket& socket) {
  error_code error;
  const auto here = socket.local_endpoint(error).address();
  const auto there = socket.remote_endpoint(error).address();
  if (!error && here == there) {
    socket.set_option(asio::socket_base::send_buffer_size(256 << 10), error);
  }
}

// What the connecting side asks for, behind its proof.
struct Call {
  int32_t from = 0, to = 0;
  ConnectionKey key;

  std::string encode() const {
    return fmt::format("{} {} {} {}", from, to, static_cast<int>(key.purpose), key.group);
  }
  static std::optional<Call> decode(const std::string& text);
};

std::optional<Call> Call::decode(const std::string& text) {
  Call call;
  int purpose = 0;
  unsigned long group = 0;
  int length = 0;
  if (std::sscanf(text.c_str(), "%d %d %d %lu%n", &call.from, &call.to, &purpose, &group,
                  &length) != 4 ||
      static_cast<size_t>(length) != text.size()) {
    return std::nullopt;
  }
  call.key = {static_cast<Purpose>(purpose), group, call.from};
  switch (call.key.purpose) {
    case Purpose::control:
    case Purpose::group:
      return call;
    case Purpose::channel_out:  // theirs is the other end of ours
      call.key.purpose = Purpose::channel_in;
      return call;
    case Purpose::channel_in:
      break;
  }
  return std::nullopt;
}

// Closes the socket when its time is over, which ends whatever waits on it.
class Limit {
 public:
  Limit(const std::shared_ptr<Socket>& socket, milliseconds time)
      : timer_(std::make_shared<asio::steady_timer>(socket->get_executor(), time)) {
    timer_->async_wait([weak = std::weak_ptr(socket), timer = timer_](error_code error) {
      const auto open = weak.lock();
      error_code ignored;
      if (!error && open) open->close(ignored);
    });
  }
  ~Limit() { timer_->cancel(); }
  Limit(const Limit&) = delete;
  Limit& operator=(const Limit&) = delete;

 private:
  std::shared_ptr<asio::steady_timer> timer_;
};

asio::awaitable<std::string> read_frame(Socket& socket, size_t limit) {
  std::array<char, wire::kLengthBytes> header = {};
  co_await asio::async_read(socket, asio::buffer(header), asio::use_awaitable);
  const std::optional<size_t> length =
      wire::frame_length(std::string_view(header.data(), header.size()), limit);
  if (!length) throw system_error(asio::error::invalid_argument);
  std::string payload(*length, '\0');
  co_await asio::async_read(socket, asio::buffer(payload), asio::use_awaitable);
  co_return payload;
}

asio::awaitable<void> write_frames(Socket& socket, std::string frames) {
  co_await asio::async_write(socket, asio::buffer(frames), asio::use_awaitable);
}

// The other side is no rank of ours: trying again is useless.
struct Refused {
  std::string reason;
};

std::string encode_failure(const Error& error, int rank) {
  const Diagnostic& first = error.diagnostics().front();
  const nlohmann::json text = {{"rank", rank},
                               {"exit", static_cast<int>(error.exit())},
                               {"code", first.code},
                               {"what", first.what},
                               {"help", first.help}};
  return text.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

class TcpNetwork final : public Network {
 public:
  explicit TcpNetwork(const NetworkOptions& options)
      : options_(options), secret_(options.token + " ranks"), acceptor_(io_) {
    auth::check_token(options.token);
    error_code error;
    const auto address = asio::ip::make_address(options.address, error);
    const asio::ip::tcp::endpoint endpoint(address, 0);
    if (!error) acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (!error) port_ = acceptor_.local_endpoint(error).port();
    if (error) {
      throw Error(Exit::environment,
                  {.code = "comm.listen",
                   .what = fmt::format("rank {} cannot listen on {}: {}", options.rank,
                                       options.address, error.message()),
                   .help = "MTL_NODE_ADDRESS must be a numeric address of this machine that the "
                           "other machines reach"});
    }
    ::fcntl(acceptor_.native_handle(), F_SETFD, FD_CLOEXEC);
  }

  ~TcpNetwork() override {
    if (peers_) {
      // Again, for those whom the one who failed first has not reached yet.
      if (const auto failure = peers_->failure()) tell(encode_failure(*failure, options_.rank));
      if (!peers_->has_left()) tell("left");
    }
    io_.stop();
    if (thread_.joinable()) thread_.join();
  }

  uint16_t port() const override { return port_; }

  void start(std::shared_ptr<Peers> peers) override {
    peers_ = std::move(peers);
    peers_->tell_failure = [this](const Error& error) {
      tell(encode_failure(error, options_.rank));
    };
    peers_->tell_leave = [this] { tell("left"); };
    controls_.resize(static_cast<size_t>(peers_->size()), -1);
    asio::co_spawn(io_, accept_all(), asio::detached);
    thread_ = std::thread([this] { io_.run(); });
    for (int rank = 0; rank < options_.rank; ++rank) connect({Purpose::control, 0, rank});
    for (int rank = 0; rank < peers_->size(); ++rank) {
      if (rank == options_.rank) continue;
      peers_->take({Purpose::control, 0, rank},
                   [&] { return fmt::format("waits for rank {} to connect", rank); });
    }
  }

  void connect(const ConnectionKey& key) override {
    asio::co_spawn(io_, dial(key), asio::detached);
  }

 private:
  // To all, from any thread. Such a message is short, and there are few in the life of a
  // connection: the kernel always has room.
  void tell(const std::string& message) {
    const std::string frame = wire::frame(message);
    const std::scoped_lock lock(controls_mutex_);
    for (const int fd : controls_) {
      if (fd >= 0) (void)!::send(fd, frame.data(), frame.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    }
  }

  asio::awaitable<void> accept_all() {
    for (;;) {
      error_code error;
      auto socket = std::make_shared<Socket>(io_);
      co_await acceptor_.async_accept(*socket, asio::redirect_error(asio::use_awaitable, error));
      if (error == asio::error::operation_aborted) co_return;
      if (error) {
        asio::steady_timer pause(io_, kAcceptPause);
        co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
        continue;
      }
      std::erase_if(unproven_, [](const auto& weak) { return weak.expired(); });
      unproven_.push_back(socket);
      if (unproven_.size() > kMaxUnproven) {
        const auto oldest = unproven_.front().lock();
        unproven_.pop_front();
        if (oldest) oldest->close(error);
      }
      asio::co_spawn(io_, answer(std::move(socket)), asio::detached);
    }
  }

  // The listening side of a connection.
  asio::awaitable<void> answer(std::shared_ptr<Socket> socket) {
    try {
      std::optional<Call> call;
      {
        const Limit limit(socket, kProofLimit);
        tune(*socket);
        const std::string hello_text = co_await read_frame(*socket, wire::kMaxHandshakeFrame);
        const std::optional<wire::Hello> hello = wire::decode_hello(hello_text);
        if (!hello) co_return;
        wire::Challenge challenge;
        challenge.nonce = auth::random_nonce();
        co_await write_frames(*socket, wire::frame(wire::encode(challenge)));
        const std::string proof_text = co_await read_frame(*socket, wire::kMaxHandshakeFrame);
        const std::optional<wire::Proof> proof = wire::decode_proof(proof_text);
        if (!proof) co_return;
        const bool genuine =
            hello->version == wire::kVersion &&
            auth::equal(proof->mac, auth::client_proof(secret_, *hello, challenge));
        wire::Welcome welcome;
        welcome.generation = options_.generation;
        if (!genuine) {
          welcome.verdict = wire::Verdict::wrong_token;
        } else if (hello->generation != options_.generation) {
          welcome.verdict = wire::Verdict::wrong_generation;
        }
        if (genuine) welcome.mac = auth::server_proof(secret_, *hello, challenge, welcome);
        // Read in any case: closing with unread data would take our answer back.
        const std::string call_text = co_await read_frame(*socket, wire::kMaxHandshakeFrame);
        if (welcome.verdict == wire::Verdict::accepted) {
          call = Call::decode(call_text);
          if (!call || call->to != options_.rank || call->from < 0 ||
              call->from >= peers_->size() || call->from == options_.rank) {
            co_return;
          }
        }
        // At once, so that we have the connection before the other side can say that it leaves.
        const std::string answer_text = wire::frame(wire::encode(welcome));
        if (::send(socket->native_handle(), answer_text.data(), answer_text.size(),
                   MSG_DONTWAIT | MSG_NOSIGNAL) != static_cast<ssize_t>(answer_text.size())) {
          co_return;
        }
      }
      if (call) serve(call->key, std::move(socket));
    } catch (const std::exception&) {
      // Whoever it was, it is dropped.
    }
  }

  // The connecting side.
  asio::awaitable<void> prove(const std::shared_ptr<Socket>& socket, ConnectionKey key) {
    wire::Hello hello;
    hello.generation = options_.generation;
    hello.nonce = auth::random_nonce();
    co_await write_frames(*socket, wire::frame(wire::encode(hello)));
    const std::string challenge_text = co_await read_frame(*socket, wire::kMaxHandshakeFrame);
    const std::optional<wire::Challenge> challenge = wire::decode_challenge(challenge_text);
    if (!challenge) throw Refused{"it is not a rank of mtl"};
    wire::Proof proof;
    proof.mac = auth::client_proof(secret_, hello, *challenge);
    Call call;
    call.from = options_.rank;
    call.to = key.peer;
    call.key = key;
    co_await write_frames(*socket, wire::frame(wire::encode(proof)) + wire::frame(call.encode()));
    const std::string welcome_text = co_await read_frame(*socket, wire::kMaxHandshakeFrame);
    const std::optional<wire::Welcome> welcome = wire::decode_welcome(welcome_text);
    if (!welcome) throw Refused{"it is not a rank of mtl"};
    if (welcome->verdict == wire::Verdict::wrong_token ||
        !auth::equal(welcome->mac, auth::server_proof(secret_, hello, *challenge, *welcome))) {
      throw Refused{"it has another token: it belongs to another run"};
    }
    if (welcome->verdict != wire::Verdict::accepted) {
      throw Refused{fmt::format("it belongs to generation {} of the run and not to {}",
                                welcome->generation, options_.generation)};
    }
  }

  asio::awaitable<void> dial(ConnectionKey key) {
    const Card& card = peers_->card(key.peer);
    const Clock::time_point deadline =
        Clock::now() + std::min<milliseconds>(kConnectPatience, peers_->timeout());
    std::string reason;
    for (;;) {
      if (peers_->has_departed(key.peer)) co_return;
      bool again = true;
      try {
        auto socket = std::make_shared<Socket>(io_);
        {
          const Limit limit(socket, kAttempt);
          co_await socket->async_connect({asio::ip::make_address(card.address), card.port},
                                         asio::use_awaitable);
        }
        tune(*socket);
        {
          const Limit limit(socket, kProofLimit);
          co_await prove(socket, key);
        }
        serve(key, std::move(socket));
        co_return;
      } catch (const Refused& refused) {
        reason = refused.reason;
        again = false;
      } catch (const system_error& error) {
        reason =
            error.code() == asio::error::operation_aborted ? "no answer" : error.code().message();
      } catch (const std::exception& error) {
        reason = error.what();
        again = false;
      }
      if (!again || Clock::now() >= deadline) break;
      asio::steady_timer pause(io_, kBetweenAttempts);
      co_await pause.async_wait(asio::use_awaitable);
    }
    const Card& own = peers_->card(options_.rank);
    peers_->unreachable(
        key, Error(Exit::environment,
                   {.code = "comm.connect",
                    .what = fmt::format("rank {} ({}, {}) cannot connect to rank {} ({}, {} port "
                                        "{}): {}",
                                        options_.rank, own.host, own.address, key.peer, card.host,
                                        card.address, card.port, reason),
                    .help = "workers of different machines connect to each other on any port: let "
                            "them through the firewall, or choose the network with --interface"}));
  }

  // A connection that has proved itself.
  void serve(const ConnectionKey& key, std::shared_ptr<Socket> socket) {
    if (key.purpose == Purpose::control) {
      asio::co_spawn(io_, listen_to(key.peer, std::move(socket)), asio::detached);
      return;
    }
    keep_in_cache(*socket);
    peers_->arrived(key, Fd(socket->release()));
  }

  // The control connection of one rank: until it ends.
  asio::awaitable<void> listen_to(int rank, std::shared_ptr<Socket> socket) {
    int& place = controls_[static_cast<size_t>(rank)];
    {
      const std::scoped_lock lock(controls_mutex_);
      if (place >= 0) co_return;  // one per rank
      place = socket->native_handle();
    }
    peers_->arrived({Purpose::control, 0, rank}, Fd());
    std::string reason;
    try {
      for (;;) hear(rank, co_await read_frame(*socket, kMaxControlFrame));
    } catch (const system_error& error) {
      const error_code code = error.code();
      const Card& card = peers_->card(rank);
      const bool closed = code == asio::error::eof || code == asio::error::connection_reset ||
                          code == asio::error::broken_pipe;
      reason = closed ? fmt::format("(process {} on {}) has died", card.pid, card.host)
                      : fmt::format("({}, {}) cannot be reached any more: {}", card.host,
                                    card.address, code.message());
    } catch (const std::exception& error) {
      reason = fmt::format("says what no rank says ({})", error.what());
    }
    {
      const std::scoped_lock lock(controls_mutex_);
      place = -1;
    }
    peers_->departed(rank, reason);  // unless it has said that it leaves
  }

  void hear(int rank, const std::string& message) {
    if (message == "left") return peers_->departed(rank, "has left");
    const auto json = nlohmann::json::parse(message, nullptr, false);
    if (!json.is_object()) return;
    Diagnostic diagnostic;
    diagnostic.code = json.value("code", "");
    diagnostic.what = json.value("what", "");
    diagnostic.help = json.value("help", "");
    peers_->failed_elsewhere(json.value("rank", rank),
                             Error(static_cast<Exit>(json.value("exit", 1)), diagnostic));
  }

  const NetworkOptions options_;
  const std::string secret_;
  uint16_t port_ = 0;
  std::shared_ptr<Peers> peers_;
  std::mutex controls_mutex_;
  std::vector<int> controls_;  // by rank; -1 = none
  std::list<std::weak_ptr<Socket>> unproven_;
  asio::io_context io_{1};
  asio::ip::tcp::acceptor acceptor_;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Network> make_network(const NetworkOptions& options) {
  return std::make_unique<TcpNetwork>(options);
}

}  // namespace mtl::tcp
