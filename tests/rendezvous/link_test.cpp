// Links between two hubs of this process: messages, order, ends, errors.
#include "rendezvous/link.h"

#include <fcntl.h>
#include <map>
#include <set>
#include <thread>
#include <unistd.h>

#include <sys/socket.h>

#include "common/error.h"
#include "link_support.h"

using namespace mtl;
using namespace mtl::test;
using namespace std::chrono_literals;

namespace {

struct Pair {
  LinkId here = 0, there = 0;
};

Pair join(LinkHub& server, LinkHub& client, const std::string& address = "127.0.0.1") {
  const uint16_t port = server.listen(address, 0);
  Pair pair;
  pair.here = client.connect(address, port, 20s);
  const LinkEvent ours = expect(client, LinkEvent::opened);
  const LinkEvent theirs = expect(server, LinkEvent::opened);
  CHECK(ours.link == pair.here);
  CHECK(ours.peer_address == theirs.local_address);
  CHECK(ours.local_address == theirs.peer_address);
  pair.there = theirs.link;
  return pair;
}

bool have_ipv6() {
  const auto hub = make_link_hub(hub_options());
  try {
    hub->listen("::1", 0);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

TEST_CASE("messages cross a TCP link in order both ways of any size") {
  std::vector<std::string> addresses = {"127.0.0.1", "localhost"};
  if (have_ipv6()) {
    addresses.push_back("::1");
    addresses.push_back("[::1]");
  }
  for (const std::string& address : addresses) {
    CAPTURE(address);
    const auto server = make_link_hub(hub_options());
    const auto client = make_link_hub(hub_options());
    const Pair link = join(*server, *client, address);
    const size_t sizes[] = {0, 1, 100, 65'536, 5'000'000, 3};
    uint16_t kind = 0;
    for (const size_t size : sizes) {
      client->send(link.here, message(kind, std::string(size, 'a'), -5));
      server->send(link.there, message(kind, std::string(size, 'b'), 1LL << 40));
      ++kind;
    }
    kind = 0;
    for (const size_t size : sizes) {
      const LinkEvent up = expect(*server, LinkEvent::arrived);
      CHECK(up.link == link.there);
      CHECK(up.message.kind == kind);
      CHECK(up.message.generation == -5);
      CHECK(up.message.body == std::string(size, 'a'));
      const LinkEvent down = expect(*client, LinkEvent::arrived);
      CHECK(down.message.kind == kind++);
      CHECK(down.message.generation == 1LL << 40);
      CHECK(down.message.body == std::string(size, 'b'));
    }
    client->close(link.here);
    const LinkEvent end = expect(*server, LinkEvent::lost);
    CHECK(end.loss == LinkEvent::closed);
    CHECK_FALSE(next_event(*client, 20ms));
  }
}
