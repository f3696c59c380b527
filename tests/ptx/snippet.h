// A kernel for a test, from the statements of its body.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "ptx/machine.h"

namespace mtl::ptx {

// ".entry kernel(.param .u64 out, .param .u64 in)" with registers %r, %rs, %rd, %f, %fd, %p of 64
// each; `shared` are variables of the module.
inline std::string snippet(const std::string& body, const std::string& shared = "") {
  return ".version 9.0\n.target sm_90a\n.address_size 64\n" + shared +
         ".entry kernel(.param .u64 out, .param .u64 in)\n{\n"
         ".reg .pred %p<64>;\n.reg .b16 %rs<64>;\n.reg .b32 %r<64>;\n.reg .b64 %rd<64>;\n"
         ".reg .f32 %f<64>;\n.reg .f64 %fd<64>;\n" +
         body + "\nret;\n}\n";
}

struct SnippetRun {
  Dim3 grid, block{32, 1, 1};
  size_t dynamic_shared = 0;
  unsigned resident = 1, seed = 1;
  std::vector<Watcher*> watchers;
};

inline void run_snippet(const std::string& text, void* out, const void* in,
                        const SnippetRun& how = {}) {
  const Module module(text);
  Launch launch;
  launch.kernel = &module.kernel("kernel");
  launch.grid = how.grid;
  launch.block = how.block;
  launch.dynamic_shared = how.dynamic_shared;
  launch.resident = how.resident;
  launch.seed = how.seed;
  launch.watchers = how.watchers;
  launch.parameters.resize(16);
  std::memcpy(launch.parameters.data(), &out, 8);
  std::memcpy(launch.parameters.data() + 8, &in, 8);
  run(launch);
}

}  // namespace mtl::ptx
