// What keeps a job on several machines from starting: said in seconds, with what to do, by the
// right exit code, and nothing has been started anywhere. And what must not keep it.
#include <chrono>
#include <fstream>
#include <sstream>

#include "cluster/jobs.h"
#include "launcher/job/job.h"
#include "rendezvous/link_frames.h"
#include "support/text.h"

using namespace mtl::test;
using namespace std::chrono_literals;

namespace {

const std::vector<std::string> kAll = {"--hosts", "m1,m2,m3,m4"};

std::vector<std::string> operator+(std::vector<std::string> first,
                                   const std::vector<std::string>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// A program that would be seen if it had run anywhere.
std::vector<std::string> never(const Cluster& cluster) {
  return {"--", cluster.script("never", "echo ran > ran-$RANK; sleep 1000\n")};
}

void replace(const fs::path& file, const std::string& from, const std::string& to) {
  std::string text = file_text(file);
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  text.replace(at, from.size(), to);
  std::ofstream(file, std::ios::binary) << text;
}

fs::path known_hosts(const Cluster& cluster) {
  return cluster.home(0) / ".ssh" / "known_hosts";
}

// Without the line of m3.
void forget_m3(const Cluster& cluster, const std::string& instead) {
  std::istringstream in(file_text(known_hosts(cluster)));
  std::ofstream out(known_hosts(cluster));
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("m3,")) {
      out << line << '\n';
    } else if (!instead.empty()) {
      out << line.substr(0, line.find(' ')) << ' ' << instead << '\n';
    }
  }
}

std::string public_key(const fs::path& key) {
  std::istringstream in(file_text(key.string() + ".pub"));
  std::string type, text;
  in >> type >> text;
  return type + " " + text;
}

}  // namespace

TEST_CASE_FIXTURE(Machines, "one host that cannot be used ends the start and is named") {
  Cluster cluster;
  std::string code, words;
  std::vector<std::string> flags;
  SUBCASE("refused") {
    cluster.stop_sshd(3);
    code = "ssh.connect";
    words = "refused";
  }
  SUBCASE("no way there") {
    cluster.cut(3);
    code = "ssh.connect";
    words = "No route to host";
  }
  SUBCASE("silent") {
    cluster.freeze(3);
    code = "ssh.timeout";
  }
  SUBCASE("wrong key") {
    const fs::path mine = cluster.dir() / "nobody";
    std::ofstream(mine) << "";
    replace(cluster.sshd_config(3), (cluster.dir() / "authorized_keys").string(), mine.string());
    cluster.start_sshd(3);
    code = "ssh.auth";
    words = "publickey";
  }
  SUBCASE("password only") {
    replace(cluster.sshd_config(3), "PasswordAuthentication no",
            "PasswordAuthentication yes\nPubkeyAuthentication no");
    cluster.start_sshd(3);
    code = "ssh.auth";
    words = "password";
  }
  SUBCASE("unknown host key") {
    forget_m3(cluster, "");
    code = "ssh.host_key_unknown";
  }
  SUBCASE("changed host key") {
    forget_m3(cluster, public_key(cluster.host_key(1)));
    code = "ssh.host_key_changed";
  }
  SUBCASE("start-up file that exits") {
    std::ofstream(cluster.home(3) / ".bashrc") << "echo go away; exit 3\n";
    code = "ssh.command";
    words = "go away";
  }
  SUBCASE("no shell") {
    std::ofstream(cluster.dir() / "m3" / "passwd", std::ios::app)
        << "guest:x:0:0::/tmp:/usr/sbin/nologin\n";
    std::ofstream(cluster.dir() / "m3" / "shadow", std::ios::app) << "guest:*:19000::::::\n";
    flags = {"--hosts", "m1,m2,guest@m3,m4"};
    code = "ssh.command";
    words = "not available";
  }
  if (flags.empty()) flags = kAll;
  const CommandEnd end = cluster.launched(flags + never(cluster));
  CHECK_MESSAGE(end.code == 4, end.err);
  CHECK_MESSAGE(has(end.err, "error[" + code + "]: "), end.err);
  CHECK_MESSAGE(has(end.err, "m3"), end.err);
  CHECK_MESSAGE(has(end.err, words), end.err);
  CHECK_MESSAGE(has(end.err, "error[launch.nodes]: 3 of the 4 nodes"), end.err);
  CHECK(cluster.files("ran-").empty());
  if (code == "ssh.timeout") cluster.thaw(3);
  if (words == "No route to host") cluster.heal(3);
  CHECK_NOTHING_LEFT(cluster);
  // With fewer allowed it starts without that host.
  if (words == "refused" || words == "password") {
    const CommandEnd three =
        cluster.launched(flags + std::vector<std::string>{"--nnodes", "3:4", "--", "/bin/sh", "-c",
                                                          "echo $WORLD_SIZE > world-$RANK"});
    CHECK_MESSAGE(three.code == 0, three.err);
    CHECK(cluster.files("world-").size() == 3);
    CHECK(cluster.files("world-")["world-2"] == "3\n");
    CHECK_MESSAGE(has(three.err, "without a host: "), three.err);
  }
}

TEST_CASE_FIXTURE(Machines, "all that is wrong with the hosts is told at once") {
  Cluster cluster;
  cluster.stop_sshd(2);
  forget_m3(cluster, "");
  const CommandEnd end = cluster.launched(kAll + never(cluster));
  CHECK(end.code == 4);
  CHECK_MESSAGE(has(end.err, "error[ssh.connect]"), end.err);
  CHECK_MESSAGE(has(end.err, "error[ssh.host_key_unknown]"), end.err);
  CHECK_MESSAGE(has(end.err, "missing: m2, m3"), end.err);
  CHECK(cluster.files("ran-").empty());
  CHECK_NOTHING_LEFT(cluster);
}

TEST_CASE_FIXTURE(Machines, "what is missing on a host is said before anything runs") {
  Cluster cluster;
  std::string code, words;
  int exit_code = 4;
  std::vector<std::string> argv;
  SUBCASE("mtl") {
    argv = kAll + std::vector<std::string>{"--remote_program", "/nowhere/mtl"} + never(cluster);
    code = "ssh.command";
    words = "/nowhere/mtl";
  }
  SUBCASE("mtl of this version") {
    const mtl::HelloMessage hello{.version = "0.0.1", .host = "m3", .offer = {}};
    const std::string body = encode(hello);
    std::string bytes(mtl::link::greeting().view());
    bytes += mtl::link::message_head(static_cast<uint16_t>(mtl::JobMessage::hello), 0, body.size())
                 .view();
    const std::string file = cluster.write("old-hello", bytes + body);
    const std::string old = cluster.script(
        "old", "if [ $(hostname) != m3 ]; then exec " MTL_PROGRAM " \"$@\"; fi\necho '" +
                   std::string(mtl::kAgentMagic) + "'\ncat " + file + "\ncat > /dev/null\n");
    argv = kAll + std::vector<std::string>{"--remote_program", old} + never(cluster);
    code = "launch.version";
    words = "m3 has mtl 0.0.1, and this is mtl";
  }
  SUBCASE("the script") {
    REQUIRE(cluster.head({"/bin/sh", "-c", "echo 'print(1)' > /dev/shm/x.py"}).code == 0);
    argv = kAll + std::vector<std::string>{"/dev/shm/x.py"};
    code = "launch.remote_files";
    exit_code = 127;
    words = "m1, m2, m3, m4: cannot read /dev/shm/x.py\n";
  }
  SUBCASE("the program") {
    REQUIRE(cluster.head({"/bin/sh", "-c", "cp /bin/true /dev/shm/prog"}).code == 0);
    argv = kAll + std::vector<std::string>{"--", "/dev/shm/prog"};
    code = "launch.remote_files";
    exit_code = 127;
    words = "m1, m2, m3, m4: cannot read /dev/shm/prog\n";
  }
  SUBCASE("the interpreter") {
    const std::string thin = cluster.script(
        "thin", "if [ $(hostname) = m3 ]; then PATH=/nowhere; export PATH; fi\nexec " MTL_PROGRAM
                " \"$@\"\n");
    const std::string script = cluster.write("x.py", "print(1)\n");
    argv = kAll + std::vector<std::string>{"--remote_program", thin, "--", "python3", script};
    code = "launch.program_missing";
    exit_code = 127;
    words = "m3: ";
  }
  CAPTURE(code);
  const CommandEnd end = cluster.launched(argv);
  CHECK_MESSAGE(end.code == exit_code, end.err);
  CHECK_MESSAGE(has(end.err, "error[" + code + "]: "), end.err);
  CHECK_MESSAGE(has(end.err, words), end.err);
  if (code == "launch.remote_files") {
    // Of all hosts, and once.
    CHECK_MESSAGE(count_of(end.err, "error[") == 2, end.err);
    for (const char* host : {"m1", "m2", "m3", "m4"}) CHECK(has(end.err, host));
    CHECK_MESSAGE(has(end.err, "missing: m1, m2, m3, m4"), end.err);
  }
  CHECK(cluster.files("ran-").empty());
  CHECK_NOTHING_LEFT(cluster);
}

TEST_CASE_FIXTURE(Machines, "a folder that not all hosts have is said before anything runs") {
  Cluster cluster(2);
  const std::string script =
      cluster.script("x", "echo ran > " + cluster.work().string() + "/ran\n");
  const CommandEnd end =
      cluster
          .start(0, {"/bin/sh", "-c",
                     "mkdir /dev/shm/here && cd /dev/shm/here && exec " MTL_PROGRAM
                     " launch --hosts m1,m2 -- " +
                         script})
          .wait(kPatience);
  CHECK(end.code == 4);
  CHECK_MESSAGE(has(end.err, "error[launch.remote_files]: m"), end.err);
  for (const char* host : {"m1", "m2"}) CHECK(has(end.err, host));
  CHECK(has(end.err, ": there is no folder /dev/shm/here\n"));
  CHECK(count_of(end.err, "error[") == 2);
  CHECK(cluster.files("ran").empty());
  CHECK_NOTHING_LEFT(cluster);
}

TEST_CASE_FIXTURE(Machines, "a host far away or noisy is no error") {
  Cluster cluster(2);
  SUBCASE("noise of start-up files") {
    std::ofstream(cluster.home(1) / ".bashrc")
        << "echo welcome to m1; echo 'mtl-agent 0'; printf 'no end of line'; echo careful >&2\n";
  }
  SUBCASE("300 ms away") {
    cluster.delay(1, 300ms);
  }
  SUBCASE("OpenSSH itself") {
    const CommandEnd own = cluster.launched(
        {"--hosts", "m1:2,m2:2", "--ssh_command", "ssh -o LogLevel=ERROR", "--", "hostname"});
    CHECK_MESSAGE(own.code == 0, own.err);
  }
  const CommandEnd end =
      cluster.launched({"--hosts", "m1:2,m2:2", "--", "/bin/sh", "-c", "hostname > ran-$RANK"});
  CHECK_MESSAGE(end.code == 0, end.err);
  CHECK(cluster.files("ran-").size() == 4);
  CHECK(cluster.files("ran-")["ran-1"] == "m1\n");
  CHECK(cluster.files("ran-")["ran-2"] == "m2\n");
  CHECK_MESSAGE(!has(end.err, "careful"), end.err);
  CHECK_NOTHING_LEFT(cluster);
}

TEST_CASE_FIXTURE(Machines, "OpenSSH's refusals end the start too") {
  Cluster cluster(3);
  std::string code;
  SUBCASE("unknown host key") {
    forget_m3(cluster, "");
    code = "ssh.host_key_unknown";
  }
  SUBCASE("refused") {
    cluster.stop_sshd(3);
    code = "ssh.connect";
  }
  const CommandEnd end = cluster.launched(
      std::vector<std::string>{"--hosts", "m1,m2,m3", "--ssh_command", "ssh"} + never(cluster));
  CHECK_MESSAGE(end.code == 4, end.err);
  CHECK_MESSAGE(has(end.err, "error[" + code + "]: "), end.err);
  CHECK(cluster.files("ran-").empty());
  CHECK_NOTHING_LEFT(cluster);
}

TEST_CASE_FIXTURE(Machines, "64 hosts at once") {
  Cluster cluster;
  std::string config = file_text(cluster.ssh_config());
  std::string aliases;
  for (int i = 0; i < 64; ++i) {
    const std::string name = Lab::name(i % 4 + 1);
    aliases += "Host n" + std::to_string(i) + "\n  HostName " + name + "\n  HostKeyAlias " + name +
               "\n  User root\n";
  }
  std::ofstream(cluster.ssh_config()) << aliases << config;
  const CommandEnd end = cluster.launched(
      {"--hosts", "n[0-63]", "--", "/bin/sh", "-c", "echo $NODE_RANK $GROUP_RANK > ran-$RANK"});
  CHECK_MESSAGE(end.code == 0, end.err);
  CHECK(cluster.files("ran-").size() == 64);
  CHECK_NOTHING_LEFT(cluster);
}

TEST_CASE_FIXTURE(Machines, "a run directory that is not shared is said before a rank starts") {
  Cluster cluster(2);
  cluster.write("corpus.txt", std::string(4000, 'a') + "bcdefg hij");
  cluster.write("train.yaml",
                "run:\n  name: tiny\nmodel:\n  layers: 1\n  hidden: 32\n  heads: 4\n"
                "train:\n  micro_batch: 1\n  global_batch: 2\n  seq_len: 16\n  steps: 3\n"
                "data:\n  train: corpus.txt\n  tokenizer:\n    type: chars\n");
  const CommandEnd end =
      cluster.launched({"--hosts", "m1,m2", "train.yaml", "run.dir=/dev/shm/runs"});
  CHECK(end.code == 4);
  CHECK_MESSAGE(has(end.err, ": cannot read /dev/shm/runs/tiny/"), end.err);
  CHECK(count_of(end.err, "error[launch.remote_files]: m") == 1);
  CHECK(has(end.err, "run.dir of a train.yaml has to be shared"));

  // Typed on each machine, they hear of the directory only when all are there.
  std::vector<Command> typed;
  for (const char* rank : {"0", "1"}) {
    typed.push_back(cluster.launch({"--num_machines", "2", "--machine_rank", rank,
                                    "--main_process_ip", "m1", "--main_process_port", "29612",
                                    "--num_processes", "2", "train.yaml", "run.dir=/dev/shm/typed"},
                                   *rank - '0' + 1));
  }
  for (Command& command : typed) {
    const CommandEnd one = command.wait(kPatience);
    CHECK_MESSAGE(one.code == 4, one.err);
    CHECK(count_of(one.err, "error[launch.remote_files]: m2: cannot read /dev/shm/typed/tiny/") ==
          1);
  }
  CHECK_NOTHING_LEFT(cluster);
}
