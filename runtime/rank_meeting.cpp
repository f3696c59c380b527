#include "runtime/rank_meeting.h"

#include <fcntl.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/error.h"
#include "common/files.h"
#include "rendezvous/network.h"
#include "rendezvous/sockets.h"

namespace mtl {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kEachAddress{2'000};
constexpr milliseconds kBetweenLooks{50};

fs::path file_of(const RankMeetingOptions& options) {
  std::string name = "meeting-";
  for (const char c : options.key) {
    const bool plain = isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_';
    name += plain ? c : '.';
  }
  return options.folder / name;
}

// Where others may reach this host; this host alone where it has nothing else.
std::vector<std::string> addresses_here() {
  std::vector<std::string> addresses;
  for (const LocalAddress& local : local_addresses()) {
    if (!local.is_loopback) addresses.push_back(local.address);
  }
  if (addresses.empty()) addresses.emplace_back("127.0.0.1");
  return addresses;
}

// The address that this host uses towards that one.
std::string own_address_towards(const std::string& peer) {
  for (const net::Address& address : net::look_up(peer, 9).addresses) {
    if (std::string own = address_towards(net::text(address)); !own.empty()) return own;
  }
  return "127.0.0.1";
}

std::unique_ptr<StoreServer> serve(const RankMeetingOptions& options, const std::string& token) {
  if (options.one_host) {
    return serve_store({.address = "127.0.0.1", .token = token, .generation = options.generation});
  }
  try {
    return serve_store({.address = "::", .token = token, .generation = options.generation});
  } catch (const Error&) {  // a kernel without IPv6
    return serve_store({.address = "0.0.0.0", .token = token, .generation = options.generation});
  }
}

nlohmann::json said(const MeetingWord& word) {
  return {{"run_dir", word.run_dir}, {"fence", word.fence}, {"complete", word.complete}};
}

MeetingWord open_first(const RankMeetingOptions& options, Store& store) {
  try {
    MeetingWord word = options.open();
    store.set("run", said(word).dump());
    return word;
  } catch (const Error& error) {
    store.set("run", nlohmann::json{{"error", error.diagnostics().front().what},
                                    {"exit", static_cast<int>(error.exit())}}
                         .dump());
    // Those that are there hear it before the store goes; the others find no file.
    try {
      store.barrier("failed", options.world, std::chrono::seconds(2));
    } catch (const Error&) {
    }
    throw;
  }
}

MeetingWord hear(const RankMeetingOptions& options, Store& store) {
  const nlohmann::json word = nlohmann::json::parse(store.get("run", options.patience));
  if (word.contains("error")) {
    try {
      store.barrier("failed", options.world, std::chrono::seconds(2));
    } catch (const Error&) {
    }
    throw Error(static_cast<Exit>(word.at("exit").get<int>()),
                {.code = "worker.rank_0",
                 .what = fmt::format("rank 0 could not open the run: {}",
                                     word.at("error").get<std::string>()),
                 .help = "see what rank 0 says"});
  }
  return {word.at("run_dir").get<std::string>(), word.at("fence").get<int64_t>(),
          word.at("complete").get<bool>()};
}

// One look at rank 0's file, and a try at every address in it. Null with why.
std::unique_ptr<Store> try_to_join(const RankMeetingOptions& options, const fs::path& path,
                                   RankMeeting& meeting, std::string& why) {
  std::error_code none;
  if (!fs::exists(path, none)) {
    why = path.string() + " is not there";
    return nullptr;
  }
  nlohmann::json word;
  try {
    word = nlohmann::json::parse(read_file(path), nullptr, false);
  } catch (const Error& error) {  // replaced or removed meanwhile
    why = error.diagnostics().front().what;
    return nullptr;
  }
  if (word.is_discarded() || !word.contains("addresses")) {
    why = path.string() + " is no word of rank 0";
    return nullptr;
  }
  const std::string token = word.at("token").get<std::string>();
  for (const nlohmann::json& address : word.at("addresses")) {
    try {
      auto store = connect_store({.address = address.get<std::string>(),
                                  .port = word.at("port").get<uint16_t>(),
                                  .token = token,
                                  .generation = options.generation,
                                  .connect_timeout = kEachAddress});
      meeting.own_address = own_address_towards(address.get<std::string>());
      meeting.token = token;
      return store;
    } catch (const Error& error) {
      why = error.diagnostics().front().what;
    }
  }
  return nullptr;
}

// The token is in it: readable for the user alone from its first instant. One that is there is that
// of a start whose rank 0 has gone, or of one that is waiting for its ranks, which nobody disturbs.
void leave_word(const RankMeetingOptions& options, const fs::path& path, const std::string& text) {
  const fs::path draft = fmt::format("{}.{}", path.string(), getpid());
  const Fd out(open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  bool left = out &&
              write(out.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
              fsync(out.get()) == 0;
  bool taken = false;
  if (left && link(draft.c_str(), path.c_str()) != 0) {
    RankMeeting other;
    std::string why;
    taken = errno == EEXIST && try_to_join(options, path, other, why) != nullptr;
    // Also on file systems without links.
    left = !taken && rename(draft.c_str(), path.c_str()) == 0;
  }
  const int error = errno;
  unlink(draft.c_str());
  if (taken) {
    throw Error(
        Exit::environment,
        {.code = "worker.meeting",
         .what = fmt::format("rank 0 of another start waits for its ranks: {}", path.string()),
         .help = "wait until it has begun, or stop it; runs of their own have names of their "
                 "own: run.name=NAME"});
  }
  if (left) return;
  throw Error(Exit::environment,
              {.code = "worker.meeting",
               .what = fmt::format("{} cannot be written: {}", path.string(),
                                   std::generic_category().message(error)),
               .help = "the ranks meet there: give a folder that all of them can write"});
}

[[noreturn]] void nobody_there(const RankMeetingOptions& options, const fs::path& path,
                               const std::string& why) {
  throw Error(Exit::environment,
              {.code = "worker.meeting",
               .what = fmt::format("rank {} of {} has not found rank 0 in {} s: {}", options.rank,
                                   options.world, options.patience.count() / 1000, why),
               .notes = {"rank 0 leaves its address in " + path.string()},
               .help = "start all ranks at once, with a run directory that all hosts share; or "
                       "use mtl launch, which needs neither"});
}

}  // namespace

RankMeeting meet_ranks(const RankMeetingOptions& options) {
  const fs::path path = file_of(options);
  RankMeeting meeting;
  if (options.rank == 0) {
    make_directories(options.folder);
    meeting.token = make_token();
    meeting.server = serve(options, meeting.token);
    std::vector<std::string> addresses;
    if (options.one_host) {
      addresses = {"127.0.0.1"};
    } else {
      addresses = addresses_here();
      meeting.own_address = addresses.front();
      if (!options.address.empty()) addresses.insert(addresses.begin(), options.address);
    }
    if (options.one_host) meeting.own_address = "127.0.0.1";
    leave_word(
        options, path,
        nlohmann::json{
            {"addresses", addresses}, {"port", meeting.server->port()}, {"token", meeting.token}}
            .dump());
    try {
      meeting.store = connect_store({.address = "127.0.0.1",
                                     .port = meeting.server->port(),
                                     .token = meeting.token,
                                     .generation = options.generation});
      meeting.word = open_first(options, *meeting.store);
      // Once all are here nobody needs the file any more, and a later start cannot mistake it.
      meeting.store->barrier("met", options.world, options.patience);
    } catch (...) {
      unlink(path.c_str());
      throw;
    }
    unlink(path.c_str());
    return meeting;
  }
  std::string why;
  for (const auto until = Clock::now() + options.patience;;) {
    meeting.store = try_to_join(options, path, meeting, why);
    if (meeting.store) break;
    if (Clock::now() > until) nobody_there(options, path, why);
    std::this_thread::sleep_for(kBetweenLooks);
  }
  meeting.word = hear(options, *meeting.store);
  meeting.store->barrier("met", options.world, options.patience);
  return meeting;
}

}  // namespace mtl
