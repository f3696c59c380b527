// The store's TCP client. A call takes an idle connection, or makes one if other threads use all of
// them, sends its request and waits for the reply; there is no thread behind it. A connection that
// failed is not used again.
#include <algorithm>
#include <array>
#include <fcntl.h>
#include <mutex>
#include <thread>
#include <vector>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <fmt/format.h>

#include "common/error.h"
#include "rendezvous/auth.h"
#include "rendezvous/longest_wait.h"
#include "rendezvous/protocol.h"
#include "rendezvous/request_store.h"
#include "rendezvous/sockets.h"
#include "rendezvous/store.h"

namespace mtl {

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// A server that is there answers at once; this much later it counts as gone.
constexpr milliseconds kReplyGrace{30'000};
// The kernel's own retries of a lost SYN wait 1, 2, 4... s; short attempts of our own are faster.
constexpr milliseconds kFirstAttempt{250};
constexpr milliseconds kLongestAttempt{2'000};
constexpr milliseconds kBetweenAttempts{50};

// The connection broke, or its time is over; `reason` is for people.
struct Broken {
  std::string reason;
};

milliseconds left(Clock::time_point deadline) {
  return std::max(milliseconds(0),
                  std::chrono::duration_cast<milliseconds>(deadline - Clock::now()));
}

class Connection {
 public:
  Connection() : socket_(io_) {}

  void connect(const tcp::resolver::results_type& endpoints, Clock::time_point deadline) {
    error_code result = asio::error::would_block;
    asio::async_connect(socket_, endpoints,
                        [&](error_code error, const tcp::endpoint&) { result = error; });
    run_until(deadline, result, "no answer");
    const int fd = socket_.native_handle();
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    net::tune(fd, kReplyGrace);
    net::tune_for_messages(fd);
  }

  void send(const std::string& payload, Clock::time_point deadline) {
    const std::string out = wire::frame(payload);
    error_code result = asio::error::would_block;
    asio::async_write(socket_, asio::buffer(out),
                      [&](error_code error, size_t) { result = error; });
    run_until(deadline, result, "it does not read");
  }

  std::string receive(size_t limit, Clock::time_point deadline) {
    std::array<char, wire::kLengthBytes> header;
    read(asio::buffer(header), deadline);
    const auto length = wire::frame_length({header.data(), header.size()}, limit);
    if (!length) throw Broken{"it does not speak the store's protocol"};
    std::string payload(*length, '\0');
    read(asio::buffer(payload), deadline);
    return payload;
  }

 private:
  template <typename Buffer>
  void read(const Buffer& buffer, Clock::time_point deadline) {
    error_code result = asio::error::would_block;
    asio::async_read(socket_, buffer, [&](error_code error, size_t) { result = error; });
    run_until(deadline, result, "no answer");
  }

  void run_until(Clock::time_point deadline, error_code& result, const char* when_late) {
    io_.restart();
    io_.run_until(deadline);
    if (!io_.stopped()) {
      // The handler refers to our caller's stack: it has to run before we return.
      error_code ignored;
      socket_.close(ignored);
      io_.run();
      if (result) throw Broken{when_late};
    }
    if (result == asio::error::eof) throw Broken{"it closed the connection"};
    if (result) throw Broken{result.message()};
  }

  asio::io_context io_;
  tcp::socket socket_;
};

class Client final : public RequestStore {
 public:
  explicit Client(const StoreClientOptions& options) : options_(options) {
    auth::check_token(options.token);
    host_ = options.address;
    if (host_.size() > 2 && host_.front() == '[' && host_.back() == ']') {
      host_ = host_.substr(1, host_.size() - 2);
    }
    idle_.push_back(make_connection());
  }

 protected:
  wire::Reply call(wire::Request& request) override {
    std::unique_ptr<Connection> connection = take();
    wire::Reply reply = call_on(*connection, request);
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(connection));
    return reply;
  }

 private:
  wire::Reply call_on(Connection& connection, const wire::Request& request) const {
    try {
      const Clock::time_point deadline =
          Clock::now() +
          std::clamp(milliseconds(request.timeout_ms), milliseconds(0), kLongestWait) + kReplyGrace;
      connection.send(wire::encode(request), deadline);
      auto reply = wire::decode_reply(connection.receive(wire::kMaxFrame, deadline));
      if (!reply) throw Broken{"it does not speak the store's protocol"};
      return std::move(*reply);
    } catch (const Broken& broken) {
      throw Error(Exit::run_failed,
                  {.code = "rendezvous.lost",
                   .what = fmt::format("the rendezvous at {} port {} is gone ({})",
                                       options_.address, options_.port, broken.reason),
                   .help = "the launcher's first node has ended or cannot be reached any more; its "
                           "log says why"});
    }
  }

  std::unique_ptr<Connection> take() {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        std::unique_ptr<Connection> connection = std::move(idle_.back());
        idle_.pop_back();
        return connection;
      }
    }
    return make_connection();
  }

  // Tries until connect_timeout: the server may start after its clients.
  std::unique_ptr<Connection> make_connection() const {
    const Clock::time_point deadline =
        Clock::now() + std::clamp(options_.connect_timeout, milliseconds(0), kLongestWait);
    milliseconds attempt = kFirstAttempt;
    std::string reason = "no time to try";
    for (;;) {
      try {
        asio::io_context io;
        error_code error;
        tcp::resolver resolver(io);
        const auto endpoints = resolver.resolve(host_, std::to_string(options_.port),
                                                tcp::resolver::numeric_service, error);
        if (error) throw Broken{"cannot resolve the name: " + error.message()};
        auto connection = std::make_unique<Connection>();
        connection->connect(endpoints, std::min(deadline, Clock::now() + attempt));
        // A connected server may be slow (a storm of clients), it gets more time.
        authenticate(*connection, std::min(deadline, Clock::now() + kReplyGrace));
        return connection;
      } catch (const Broken& broken) {
        reason = broken.reason;
      }
      if (left(deadline) == milliseconds(0)) break;
      std::this_thread::sleep_for(std::min(left(deadline), kBetweenAttempts));
      attempt = std::min(2 * attempt, kLongestAttempt);
    }
    throw Error(
        Exit::environment,
        {.code = "rendezvous.connect",
         .what = fmt::format("cannot reach the rendezvous at {} port {} within {} s: {}",
                             options_.address, options_.port,
                             static_cast<double>(options_.connect_timeout.count()) / 1000, reason),
         .help =
             "check that the first node runs, and that this address and port are reachable from "
             "here (firewall, main_process_ip)"});
  }

  void authenticate(Connection& connection, Clock::time_point deadline) const {
    const auth::Key key(options_.token);
    const wire::Hello hello = {.generation = options_.generation, .nonce = auth::random_nonce()};
    connection.send(wire::encode(hello), deadline);
    const std::string answer = connection.receive(wire::kMaxHandshakeFrame, deadline);
    const auto challenge = wire::decode_challenge(answer);
    if (!challenge) {
      const auto refusal = wire::decode_welcome(answer);
      if (refusal && refusal->verdict == wire::Verdict::wrong_version) {
        throw Error(Exit::environment,
                    {.code = "rendezvous.connect",
                     .what = fmt::format("the rendezvous at {} port {} speaks another version of "
                                         "the protocol",
                                         options_.address, options_.port),
                     .help = "install the same version of mtl on all nodes (see: mtl --version)"});
      }
      throw Broken{"it does not speak the store's protocol"};
    }
    connection.send(wire::encode(wire::Proof{auth::client_proof(key, hello, *challenge)}),
                    deadline);
    const auto welcome =
        wire::decode_welcome(connection.receive(wire::kMaxHandshakeFrame, deadline));
    if (!welcome) throw Broken{"it does not speak the store's protocol"};
    if (!auth::equal(welcome->mac, auth::server_proof(key, hello, *challenge, *welcome))) {
      throw Error(Exit::environment,
                  {.code = "rendezvous.auth",
                   .what = fmt::format("the rendezvous at {} port {} has another token than we",
                                       options_.address, options_.port),
                   .help = "it belongs to another run: give this run another main_process_port, or "
                           "end the old one"});
    }
    if (welcome->verdict != wire::Verdict::accepted) {
      throw Error(Exit::environment,
                  {.code = "rendezvous.generation",
                   .what = fmt::format("the rendezvous at {} port {} is at generation {}, we at {}",
                                       options_.address, options_.port, welcome->generation,
                                       options_.generation),
                   .help = "the job has been restarted without this process: it should end"});
    }
  }

  const StoreClientOptions options_;
  std::string host_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Connection>> idle_;
};

}  // namespace

std::unique_ptr<Store> connect_store(const StoreClientOptions& options) {
  return std::make_unique<Client>(options);
}

}  // namespace mtl
