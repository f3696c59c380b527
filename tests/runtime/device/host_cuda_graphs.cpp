// Graphs of the CUDA of tests/host_cuda: what two streams record is replayed in no order but that
// of their dependencies, as a GPU may.
#if defined(MTL_TEST_CUDA_LIBRARY)

#include <cuda_runtime_api.h>
#include <set>
#include <string>

#include <doctest/doctest.h>

#include "host_cuda/stream.h"

namespace {

// What is replayed, in the order in which it comes: 1 and 2 one after the other, and between a fork
// and a join with the stream of a and b.
std::set<std::string> orders_of_replays(int replays) {
  cudaStream_t main = nullptr, beside = nullptr;
  cudaEvent_t fork = nullptr, join = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&main, cudaStreamNonBlocking) == cudaSuccess);
  REQUIRE(cudaStreamCreateWithFlags(&beside, cudaStreamNonBlocking) == cudaSuccess);
  REQUIRE(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming) == cudaSuccess);
  REQUIRE(cudaEventCreateWithFlags(&join, cudaEventDisableTiming) == cudaSuccess);
  std::string order;
  const auto put = [&](cudaStream_t stream, char name) {
    stream->enqueue([&order, name] { order += name; });
  };
  REQUIRE(cudaStreamBeginCapture(main, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  put(main, '(');
  CHECK(cudaEventRecord(fork, main) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(beside, fork, 0) == cudaSuccess);
  put(main, '1');
  put(beside, 'a');
  put(main, '2');
  put(beside, 'b');
  CHECK(cudaEventRecord(join, beside) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(main, join, 0) == cudaSuccess);
  put(main, ')');
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t made = nullptr;
  REQUIRE(cudaStreamEndCapture(main, &graph) == cudaSuccess);
  REQUIRE(cudaGraphInstantiate(&made, graph, 0) == cudaSuccess);
  std::set<std::string> orders;
  for (int i = 0; i < replays; ++i) {
    order.clear();
    CHECK(cudaGraphLaunch(made, main) == cudaSuccess);
    CHECK(cudaStreamSynchronize(main) == cudaSuccess);
    orders.insert(order);
  }
  cudaGraphExecDestroy(made);
  cudaGraphDestroy(graph);
  for (const cudaEvent_t event : {fork, join}) cudaEventDestroy(event);
  for (const cudaStream_t stream : {main, beside}) cudaStreamDestroy(stream);
  return orders;
}

}  // namespace

TEST_CASE(
    "cuda device: the CUDA on the host replays branches of a graph in every order that may be") {
  CHECK(orders_of_replays(200) ==
        std::set<std::string>{"(12ab)", "(1a2b)", "(1ab2)", "(a12b)", "(a1b2)", "(ab12)"});
}

#endif
