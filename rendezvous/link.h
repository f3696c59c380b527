// Links: framed message connections between the job's controller and the agents, one per node. A
// hub keeps any number of them (one on an agent, thousands on the controller) in a thread of its
// own: it proves the run's token, sends heartbeats, notices silence, and never blocks its owner.
//
// TCP links begin with the handshake of protocol.h (HMAC-SHA256 both ways); whoever cannot finish
// it in time is dropped without a word to the owner. Adopted descriptors (the channel of an ssh
// session, a socket pair) are trusted: they were made by somebody who has authenticated the peer.
//
// Death by silence. Each side sends something at least every dead_after / 5. The controller calls a
// link lost when nothing has come for dead_after. An agent must know earlier that it has been given
// up, so that the two never work at the same time: its lease ends 0.8 * dead_after after it *sent*
// the last heartbeat that was answered (Gray & Cheriton, "Leases", SOSP 1989).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/files.h"

namespace mtl {

using LinkId = int64_t;

struct LinkMessage {
  uint16_t kind = 0;       // the owner's; see launcher/node/job_messages.h
  int64_t generation = 0;  // of the sender's job: old ones are fenced off by the receiver
  std::string body;
};

struct LinkEvent {
  enum Kind {
    opened,       // authenticated, messages may go
    arrived,      // `message`
    lost,         // the link is gone; `reason` is for people, `code` for programs
    turned_away,  // who wanted to open one speaks another protocol version; `reason` says who, once
                  // of each address; no link, and nothing that it has proved
  };
  enum Loss {
    closed,         // the peer closed it (its process has ended)
    silent,         // nothing heard for dead_after / the lease is over
    refused,        // connect: nobody listens there, until the deadline
    unreachable,    // connect: no answer or no route until the deadline
    unknown_name,   // connect: the name does not resolve
    wrong_token,    // connect: the other side has another token
    wrong_version,  // another protocol version
    broken,         // anything else (malformed frames, errors of the socket)
    overflow,       // the peer does not read: more than max_queued_bytes wait for it
  };
  Kind kind = opened;
  LinkId link = 0;
  LinkMessage message;
  Loss loss = closed;
  std::string reason;
  std::string local_address;  // opened, TCP: of this side; numeric, without the port
  // opened and arrived: how far the peer's system clock is ahead of ours, as the heartbeats saw it.
  std::chrono::nanoseconds clock_ahead{0};
};

struct LinkHubOptions {
  std::string token;  // required for listen() and connect()
  std::chrono::milliseconds dead_after{5'000};
  std::chrono::milliseconds auth_timeout{5'000};
  size_t max_queued_bytes = size_t{64} << 20;  // towards one peer
};

class LinkHub {
 public:
  virtual ~LinkHub() = default;  // closes everything, without waiting for the peers

  // Accepts links from now on. `address`: IPv4, IPv6 ("::" serves both) or a name of this host, of
  // which all addresses that it has are listened at; port 0 = a free one. Returns the port. Throws
  // Error "rendezvous.port" / "rendezvous.address" (Exit::environment).
  virtual uint16_t listen(const std::string& address, uint16_t port) = 0;

  // Tries until `patience` is over (short attempts, all addresses of the name; the listener may
  // start later than we), then reports `lost`. `from`: the local address to use, "" = any.
  virtual LinkId connect(const std::string& address, uint16_t port,
                         std::chrono::milliseconds patience, const std::string& from = "") = 0;

  // Takes over an authenticated stream: `in` to read, `out` to write (may be the same file; pass an
  // empty `out` then). Reports `opened` at once. `leased`: this side is the agent, see above.
  virtual LinkId adopt(Fd in, Fd out, bool leased) = 0;

  // Never blocks, may be called from any thread. To a link that is gone: does nothing.
  // Throws Error "rendezvous.too_large" if the body is larger than 16 MiB less 64 bytes.
  virtual void send(LinkId link, LinkMessage message) = 0;
  // What has been sent goes out first (for at most `linger`); no more events of it come.
  virtual void close(LinkId link, std::chrono::milliseconds linger = std::chrono::seconds(2)) = 0;
  // Waits until everything sent on all links is with the kernel, and links that were closed have
  // ended: who leaves before that may take their last words back. False if that took too long.
  virtual bool flush(std::chrono::milliseconds patience) = 0;
  // What waits to be handed to the kernel on this link; 0 for one that is gone. For senders of much
  // that can wait. From any thread.
  virtual size_t queued_bytes(LinkId link) const = 0;

  // When the lease of an open link ends unless a heartbeat is answered before: CLOCK_BOOTTIME. For
  // whoever has to keep it even if this process is stopped. Nothing: the link is not open, or this
  // side of it is not leased. May be called from any thread.
  virtual std::optional<std::chrono::nanoseconds> lease_end(LinkId link) const = 0;
  virtual std::chrono::milliseconds dead_after() const = 0;  // as in the options

  // Readable while events wait; for poll().
  virtual int fd() const = 0;
  virtual std::optional<LinkEvent> next() = 0;
};

// Throws Error (Exit::environment) if the system refuses what it needs.
std::unique_ptr<LinkHub> make_link_hub(const LinkHubOptions& options);

}  // namespace mtl
