// The launcher against its peers, in one table: start, failure, orphans; with --cluster also on
// four machines (needs root).
//   build/bench/launch [--runs N=5] [--cluster | --only-cluster] [--venv DIR]
// The contenders of a row run in turn, N times round (slow ones fewer); median, range and the
// number of runs are shown. The calibration line says how fast this machine was. Peers that are not
// there say so: torchrun is Debian's torch 1.13, started with one function replaced, without which
// it does not start on Python 3.11; accelerate comes from scripts/client-venv.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "bench/launch/bench.h"
#include "support/text.h"

int main(int argc, char** argv) {
  using namespace mtl::bench;
  namespace fs = std::filesystem;
  Setup setup;
  bool local = true, cluster = false;
  std::string venv = MTL_CLIENT_VENV;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--cluster") {
      cluster = true;
    } else if (word == "--only-cluster") {
      cluster = true;
      local = false;
    } else if (word == "--runs" && i + 1 < argc) {
      setup.runs = std::max(1, std::atoi(argv[++i]));
    } else if (word == "--venv" && i + 1 < argc) {
      venv = argv[++i];
    } else {
      std::fprintf(stderr, "usage: launch [--runs N] [--cluster | --only-cluster] [--venv DIR]\n");
      return 2;
    }
  }
  std::string dir = (fs::temp_directory_path() / "mtl-bench-XXXXXX").string();
  if (mkdtemp(dir.data()) == nullptr) return 4;
  setup.dir = dir;
  setup.mtl = MTL_PROGRAM;
  // Neither settings of this user nor variables of a job around this one may count.
  setenv("HF_HOME", (setup.dir / "hf").c_str(), 1);
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    unsetenv(name);
  }
  const auto works = [&](const Words& command) {
    try {
      Process process(command, setup.dir / "probe");
      return process.wait(std::chrono::seconds(20)) == 0;
    } catch (const std::exception&) {
      return false;
    }
  };
  setup.has_torch = works({"/usr/bin/python3", "-c", "import torch.distributed"});
  setup.has_mpirun = works({"mpirun", "--version"});
  setup.has_srun = works({"sinfo", "-h"});
  if (setup.has_torch && works({venv + "/bin/python", "-c", "import accelerate"}))
    setup.venv = venv;
  if (works({setup.mtl, "launch", "--help"}))
    setup.help = mtl::test::file_text(setup.dir / "probe");
  write_shim(setup.dir / "torchrun.py", "from torch.distributed.run import main");
  write_shim(setup.dir / "accelerate_launch.py", "from accelerate.commands.launch import main");
  try {
    if (local) local_rows(setup);
    if (cluster) cluster_rows(setup);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
  }
  fs::remove_all(setup.dir);
  return 0;
}
