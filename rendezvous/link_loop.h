// Inside of the link hub: what its connections share, all in the hub's own thread. Includes Asio;
// only the .cpp files of the hub may include this.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

#include "rendezvous/auth.h"
#include "rendezvous/link.h"
#include "rendezvous/link_frames.h"
#include "rendezvous/protocol.h"
#include "rendezvous/pulse.h"
#include "rendezvous/sockets.h"

namespace mtl::link {

namespace asio = boost::asio;
using boost::system::error_code;
using Nanoseconds = std::chrono::nanoseconds;

Nanoseconds boot_time();     // goes on while the machine sleeps
Nanoseconds system_clock();  // since 1970
// A time that somebody else tells: none may overflow what is computed from it.
inline Nanoseconds told(int64_t value) {
  constexpr int64_t kMost = int64_t{1} << 61;
  return Nanoseconds(std::clamp(value, -kMost, kMost));
}

struct Failure {
  LinkEvent::Loss loss = LinkEvent::broken;
  std::string reason;
};

// A frame on its way out.
struct Outgoing {
  Head head;
  std::string body = {};
  bool urgent = false;  // heartbeats overtake messages that wait
  size_t size() const { return head.size + body.size(); }
};

class Peer;

// Bytes that wait per link, for those who want to know from other threads: asked for by the owner
// and not seen by the hub's thread yet, and in the queue of the peer.
class Backlog {
 public:
  void asked(LinkId link, int64_t bytes) {
    change(link, [bytes](Waiting& waiting) { waiting.asked += bytes; });
  }
  void queued(LinkId link, size_t bytes) {
    change(link, [bytes](Waiting& waiting) { waiting.queued = static_cast<int64_t>(bytes); });
  }
  size_t of(LinkId link) const {
    const std::lock_guard lock(mutex_);
    const auto found = links_.find(link);
    return found != links_.end() ? static_cast<size_t>(found->second.sum()) : 0;
  }

 private:
  struct Waiting {
    int64_t asked = 0;
    int64_t queued = 0;
    int64_t sum() const { return asked + queued; }
  };
  template <typename Change>
  void change(LinkId link, const Change& change) {
    const std::lock_guard lock(mutex_);
    const auto place = links_.try_emplace(link).first;
    change(place->second);
    if (place->second.sum() == 0) links_.erase(place);
  }
  mutable std::mutex mutex_;
  std::unordered_map<LinkId, Waiting> links_;  // only those for which something waits
};

// Lets a thread that asks the resolver hand in its answer, or find that the hub is gone.
struct Gate {
  std::mutex mutex;
  asio::io_context* io = nullptr;
};

class Loop {
 public:
  Loop(asio::io_context& io, const LinkHubOptions& options, std::function<void(LinkEvent)> emit);
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  asio::io_context& io;
  const LinkHubOptions options;
  const Nanoseconds dead_after;
  const std::function<void(LinkEvent)> emit;
  const std::shared_ptr<Gate> gate;
  std::unordered_map<LinkId, std::shared_ptr<Peer>> peers;
  std::function<LinkId()> new_id;
  std::vector<char> scratch;  // of the peer that is being read
  Backlog backlog;

  const auth::Key& key();
  double random() { return std::uniform_real_distribution<double>(0, 1)(random_); }

  void listen(Fd listener);
  // Connections that have not proved the token; `greeted`: a Hello has come.
  void add_stranger(const std::shared_ptr<Peer>& peer);
  void stranger_greeted(const std::shared_ptr<Peer>& peer);
  void remove_stranger(Peer& peer);
  // One of them speaks another version: its owner hears of it once.
  void turned_away(const std::string& address, uint32_t version);
  // A link that the owner has closed and whose last words are still on their way.
  void add_closing(const std::shared_ptr<Peer>& peer);
  void closing_over();
  // A look at the peers' deadlines is due then.
  void wake_at(Nanoseconds when);

  // A leased link's lease has moved; nothing = the link is gone.
  std::function<void(LinkId, std::optional<Nanoseconds>)> leased_until;

  // Bytes that wait in all queues.
  void count(int64_t bytes);
  // Nothing waits, and the peers of closed links have read their last words, or had time to.
  // `drained` is called when it becomes so.
  bool is_drained() const { return pending_ == 0 && closings_ == 0; }
  std::function<void()> drained;

 private:
  struct Listener {
    explicit Listener(asio::io_context& context) : socket(context) {}
    asio::posix::stream_descriptor socket;
    bool paused = false;
  };
  struct Stranger {
    std::shared_ptr<Peer> peer;
    Nanoseconds since{0};
  };
  using Strangers = std::list<Stranger>;
  void accept(Listener& listener);
  void accept_some(Listener& listener);
  bool make_room();
  std::vector<std::shared_ptr<Peer>> everybody(const std::function<bool(Peer&)>& wanted);
  void tick();

  std::mt19937_64 random_;
  std::unique_ptr<auth::Key> key_;
  std::list<Listener> listeners_;
  bool resuming_ = false;
  Strangers silent_, greeted_;  // oldest first
  std::set<std::string> turned_away_;
  std::list<std::weak_ptr<Peer>> closing_;
  asio::steady_timer timer_;
  Nanoseconds tick_at_{Nanoseconds::max()};
  size_t pending_ = 0;
  int closings_ = 0;
  friend class Peer;
};

// Makes a TCP connection, again and again until its time is over.
class Dialer : public std::enable_shared_from_this<Dialer> {
 public:
  Dialer(Loop& loop, std::string host, uint16_t port, std::chrono::milliseconds patience,
         std::string from);
  std::function<void(Fd)> connected;
  std::function<void(const Failure&)> failed;  // for good
  void start();
  // The connection came about, and was of no use.
  void again(const Failure& failure);
  void stop();
  Nanoseconds deadline() const { return deadline_; }

 private:
  void look_up();
  void use(net::Lookup lookup);
  void next();
  void wait_for(Fd socket);
  void drop_attempts();
  void pause();
  void note(const Failure& failure);
  void give_up();
  std::string target() const;

  Loop& loop_;
  const std::string host_;
  const uint16_t port_;
  const std::string from_;
  const Nanoseconds begin_, deadline_;
  asio::steady_timer timer_;  // of the newest attempt, of the pause or of the look-up
  std::list<std::shared_ptr<asio::posix::stream_descriptor>> attempts_;  // newest last
  bool pausing_ = false;  // the newest attempt has had its time, or there is none
  std::vector<net::Address> addresses_;
  std::optional<net::Address> from_address_;
  size_t next_ = 0;
  bool named_ = false;  // not numeric: the resolver may say something else later
  bool stopped_ = false;
  int rounds_ = 0;
  std::chrono::milliseconds attempt_, pause_;
  std::optional<Failure> failure_;  // the most telling one of this round or the one before
  bool new_round_ = true;
  int serial_ = 0;  // handlers of earlier timers and look-ups do nothing
};

// One connection.
class Peer : public std::enable_shared_from_this<Peer> {
 public:
  Peer(Loop& loop, LinkId id);

  void accept(Fd socket);  // a stranger; gets an id when it has proved the token
  void adopt(Fd in, Fd out, bool leased);
  void connect(std::string host, uint16_t port, std::chrono::milliseconds patience,
               std::string from);
  void send(Outgoing frame);  // queues it
  void write();               // what is queued, as far as the kernel takes it
  void close(Nanoseconds linger);
  void drop();  // at once, without a word to anybody
  void tick(Nanoseconds now);
  void overslept(Nanoseconds now);
  Nanoseconds next_change() const;
  bool gone() const { return stage_ == Stage::gone; }

 private:
  enum class Stage {
    dialing,
    hello,      // a stranger: its Hello is awaited
    proof,      // a stranger: its Proof is awaited
    challenge,  // dialed: the Challenge is awaited
    welcome,    // dialed: the Welcome is awaited
    open,
    closing,
    gone,
  };
  void note_queued(int64_t bytes);  // more, or less
  void begin_stream(Fd in, Fd out);
  void end_stream();
  void wait_readable();
  void wait_writable();
  void read();
  bool take(std::string_view payload);  // false: no more from this stream
  bool take_frame(std::string_view payload);
  void say(const std::string& payload);
  void on_hello(std::string_view payload);
  void on_challenge(std::string_view payload);
  void on_proof(std::string_view payload);
  void on_welcome(std::string_view payload);
  void refuse(const wire::Welcome& welcome);
  void open(bool leased, Nanoseconds since);
  void tell_lease();
  void fail(LinkEvent::Loss loss, std::string reason, bool for_good = false);
  void lose(const Failure& failure);
  void half_close();

  Loop& loop_;
  LinkId id_;
  Stage stage_ = Stage::dialing;
  std::shared_ptr<Dialer> dialer_;
  asio::posix::stream_descriptor in_;
  asio::posix::stream_descriptor out_;  // open only if it is not the same file as in_
  int serial_ = 0;                      // of the stream: handlers of earlier ones do nothing
  bool socket_ = false;
  bool greeted_ = false;  // adopted: its greeting has come, or none is needed
  bool adopted_ = false;
  bool writing_ = false;  // waits until it is writable
  int write_error_ = 0;
  Splitter splitter_;
  std::deque<Outgoing> queue_;
  std::deque<Outgoing> early_;  // the owner's, from before the link was open
  size_t offset_ = 0;           // into the first of queue_
  size_t queued_ = 0;           // bytes in both
  wire::Hello hello_;
  wire::Challenge challenge_;
  Nanoseconds said_at_{0};  // when the last step of the handshake was sent
  Nanoseconds first_rtt_{0}, first_ahead_{0};
  std::optional<Pulse> pulse_;
  Nanoseconds until_{Nanoseconds::max()};  // of the handshake or of the lingering
  std::list<Loop::Stranger>::iterator place_;
  std::list<Loop::Stranger>* strangers_ = nullptr;  // the list in which place_ is
  friend class Loop;
};

}  // namespace mtl::link
