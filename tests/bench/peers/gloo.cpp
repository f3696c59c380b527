// gloo's all_reduce over TCP as a contestant of all_reduce.cpp:
//   gloo RANK SIZE FOLDER ring|halving_doubling     (FOLDER: fresh, shared by the ranks)
#include <cstdlib>
#include <map>
#include <memory>
#include <string>

#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include "rounds.h"

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  const int rank = std::atoi(argv[1]);
  gloo::transport::tcp::attr attributes;
  attributes.hostname = "127.0.0.1";
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  gloo::rendezvous::FileStore store(argv[3]);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, std::atoi(argv[2]));
  context->connectFullMesh(store, device);
  if (std::string(argv[4]) == "ring") {
    bench::run_round(rank, [&](float* data, int64_t numel) {
      gloo::AllreduceOptions options(context);
      options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
      options.setOutput(data, static_cast<size_t>(numel));
      options.setReduceFunction(
          static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
      gloo::allreduce(options);
    });
  } else {
    // Prepared once per size, as its users do.
    std::map<int64_t, std::unique_ptr<gloo::AllreduceHalvingDoubling<float>>> prepared;
    bench::run_round(rank, [&](float* data, int64_t numel) {
      auto& algorithm = prepared[numel];
      if (!algorithm) {
        algorithm = std::make_unique<gloo::AllreduceHalvingDoubling<float>>(
            context, std::vector<float*>{data}, static_cast<int>(numel));
      }
      algorithm->run();
    });
  }
}
