// One GPU: memory, one stream that every op is enqueued on, copies from and to the host, what
// becomes of a Matmul, and CUDA graphs of what is replayed. Compiled by nvcc, for the kernels'
// launches (ops.h), but without a kernel of its own.
#include "runtime/device/cuda/cuda_device.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "common/error.h"
#include "runtime/device/cuda/cuda_errors.h"
#include "runtime/device/cuda/cudnn_attention.h"
#include "runtime/device/cuda/lt_matmul.h"
#include "runtime/device/cuda/ops_device.h"
#include "runtime/device/cuda/product_choices.h"
#include "runtime/device/cuda/refusals.h"
#include "runtime/device/cuda/staging.h"
#include "runtime/device/replays.h"

namespace mtl::cuda {

namespace {

class OwnedStream {
 public:
  // It does not wait for the default stream, which nothing of ours uses.
  OwnedStream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream"); }
  ~OwnedStream() { cudaStreamDestroy(stream_); }
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;
  Stream get() const { return stream_; }

 private:
  Stream stream_ = nullptr;
};

// Events with times in the stream of the ops. They are kept: a step has about as many marks as the
// one before.
class StreamClock final : public DeviceClock {
 public:
  StreamClock(Stream stream, const Replays& replays) : stream_(stream), replays_(replays) {}
  ~StreamClock() override {
    for (const cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  StreamClock(const StreamClock&) = delete;
  StreamClock& operator=(const StreamClock&) = delete;

  bool mark() override {
    if (replays_.recording()) return false;
    if (marks_ == events_.size()) {
      cudaEvent_t event = nullptr;
      if (cudaEventCreate(&event) != cudaSuccess) return false;
      events_.push_back(event);
    }
    // Of a device that has failed, the next op says so.
    if (cudaEventRecord(events_[marks_], stream_) != cudaSuccess) return false;
    ++marks_;
    return true;
  }
  std::vector<double> take() override {
    std::vector<double> seconds;
    if (marks_ == 0) return seconds;
    // The last ones may be behind what the host has waited for.
    check(cudaEventSynchronize(events_[marks_ - 1]), "the work on the GPU");
    for (size_t i = 1; i < marks_; ++i) {
      float ms = 0;
      check(cudaEventElapsedTime(&ms, events_[i - 1], events_[i]), "the time between events");
      seconds.push_back(static_cast<double>(ms) / 1000);
    }
    std::swap(events_.front(), events_[marks_ - 1]);
    marks_ = 1;
    return seconds;
  }

 private:
  const Stream stream_;
  const Replays& replays_;
  std::vector<cudaEvent_t> events_;
  size_t marks_ = 0;  // of them, since take()
};

// MTL_CUDA_GRAPHS=off: every pass is enqueued anew.
bool wants_graphs() {
  const char* const text = std::getenv("MTL_CUDA_GRAPHS");
  return text == nullptr || std::string_view(text) != "off";
}

void warn(const std::string& line) {
  std::fprintf(stderr, "warning: %s\n", line.c_str());
}

class CudaDevice final : public OpsDevice, private Recorder {
 public:
  CudaDevice(int index, std::string description, std::map<LtForm, LtAlgorithm> products)
      : index_(index),
        description_(std::move(description)),
        lt_(std::move(products)),
        graphs_(wants_graphs()) {
    check(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, index),
          "asking for the multiprocessors");
    int major = 0, minor = 0;
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index),
          "asking for the compute capability");
    check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index),
          "asking for the compute capability");
    float8_ = multiplies_float8(major, minor);
    warpgroups_ = major == 9 && minor == 0 && attention_mode_ != AttentionMode::mma;
    found_ = allocate(sizeof(int32_t));
  }
  ~CudaDevice() override {
    cudaStreamSynchronize(stream_.get());
    replays_.forget();
    cudaFree(scratch_);
    for (void* const memory : outgrown_) cudaFree(memory);
    for (const auto& [pointer, base] : allocations_) cudaFree(base);
    for (void* const memory : on_host_) cudaFreeHost(memory);
  }
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  bool communicates_beside() const override { return true; }
  bool has_float8() const override { return float8_; }
  bool host_memory() const override { return false; }
  std::string description() const override { return description_; }

  void* allocate(size_t bytes) override {
    not_recording("allocating memory");
    // cudaMalloc aligns to 256 bytes.
    void* const base = gpu_memory(bytes + kAlignment);
    const auto address = (reinterpret_cast<uintptr_t>(base) + kAlignment - 1) / kAlignment;
    void* const pointer = reinterpret_cast<void*>(address * kAlignment);
    allocations_.emplace(pointer, base);
    // Done when it is handed out: a transport may use it from another stream.
    check(cudaMemsetAsync(pointer, 0, bytes, stream_.get()), "clearing memory");
    synchronize();
    return pointer;
  }
  // Pinned, and the GPU's by the same address: kernels read and write it over PCIe.
  void* allocate_on_host(size_t bytes) override {
    not_recording("allocating memory");
    void* memory = nullptr;
    const cudaError_t error =
        cudaHostAlloc(&memory, bytes, cudaHostAllocMapped | cudaHostAllocPortable);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      throw Error(Exit::environment, pinned_refusal(static_cast<int64_t>(bytes)));
    }
    check(error, "allocating pinned memory");
    on_host_.insert(memory);
    std::memset(memory, 0, bytes);
    return memory;
  }
  void free(void* pointer) override {
    if (on_host_.erase(pointer) > 0) {
      cudaStreamSynchronize(stream_.get());
      cudaFreeHost(pointer);
      return;
    }
    const auto found = allocations_.find(pointer);
    if (found == allocations_.end()) return;
    // Waits for what still uses it. Called by destructors: a failed device has said so before.
    cudaFree(found->second);
    allocations_.erase(found);
  }

  void copy_from_host(Tensor destination, const void* source) override {
    not_recording("copying to the GPU");
    if (destination.bytes() == 0) return;
    if (destination.bytes() <= kMostBytesInArguments) return write(*this, destination, source);
    const auto bytes = static_cast<size_t>(destination.bytes());
    for (size_t done = 0; done < bytes; done += Staging::kSlotBytes) {
      const size_t piece = std::min(Staging::kSlotBytes, bytes - done);
      const size_t slot = staging_.take();
      std::memcpy(staging_.at(slot), static_cast<const char*>(source) + done, piece);
      check(cudaMemcpyAsync(destination.as<char>() + done, staging_.at(slot), piece,
                            cudaMemcpyDefault, stream_.get()),
            "copying to the GPU");
      staging_.copied(slot, stream_.get());
    }
  }

  // Half of the slots are on their way while the others are emptied.
  void copy_to_host(void* destination, Tensor source) override {
    not_recording("copying from the GPU");
    const auto bytes = static_cast<size_t>(source.bytes());
    const size_t pieces = (bytes + Staging::kSlotBytes - 1) / Staging::kSlotBytes;
    const auto length = [&](size_t i) {
      return std::min(Staging::kSlotBytes, bytes - i * Staging::kSlotBytes);
    };
    std::array<size_t, Staging::kSlots / 2> slots = {};
    size_t started = 0;
    for (size_t i = 0; i < pieces; ++i) {
      for (; started < std::min(pieces, i + slots.size()); ++started) {
        const size_t slot = slots[started % slots.size()] = staging_.take();
        check(cudaMemcpyAsync(staging_.at(slot), source.as<char>() + started * Staging::kSlotBytes,
                              length(started), cudaMemcpyDefault, stream_.get()),
              "copying from the GPU");
        staging_.copied(slot, stream_.get());
      }
      const size_t slot = slots[i % slots.size()];
      staging_.wait(slot);
      std::memcpy(static_cast<char*>(destination) + i * Staging::kSlotBytes, staging_.at(slot),
                  length(i));
    }
  }

  void synchronize() override {
    not_recording("waiting for the GPU");
    check(cudaStreamSynchronize(stream_.get()), "the work on the GPU");
  }

  // What is there was another trainer's, which is done.
  void expect(const KernelNeeds& needs) override {
    synchronize();
    replays_.forget();
    cudaFree(std::exchange(scratch_, nullptr));
    for (void* const memory : std::exchange(outgrown_, {})) cudaFree(memory);
    take_scratch(scratch_for(needs));
  }
  int64_t scratch_for(const KernelNeeds& needs) const override {
    std::optional<kernel_scratch::Backward> hopper;
    if (warpgroups_) hopper = hopper_backward();
    return kernel_scratch::whole_pieces(most_scratch(needs, hopper));
  }

  std::unique_ptr<DeviceClock> make_clock() override {
    return std::make_unique<StreamClock>(stream_.get(), replays_);
  }

  bool replays() const override { return graphs_; }
  void anew(const std::function<void()>& what) override { replays_.anew(what); }
  void replay(const std::string& key, const std::function<void()>& enqueue) override {
    const bool trouble = !replays_.trouble().empty();
    replays_.run(key, enqueue);
    if (!trouble && !replays_.trouble().empty()) {
      warn("passes are no longer replayed as CUDA graphs: " + replays_.trouble());
    }
  }

  void matmul(const Matmul& args) override {
    if (const std::string what = misfit(args); !what.empty()) {
      throw Error(Exit::run_failed,
                  {.code = "device.matmul",
                   .what = what,
                   .help = "this is a defect of mtl; please report it with the command line"});
    }
    if (multiplies_with_sums(args)) return;
    if (args.c.numel() > 0) multiply(args);
    sum_operand(args);
  }

  std::string choose_attention(const AttentionShape& shape, DType dtype) {
    return attention_.words(shape, dtype) + "; ours multiplies with " +
           own_attention_kind(*this, shape, dtype);
  }
  void attention_forward(const Attention& args) override { attention_.forward(args); }
  void attention_backward(const AttentionBackward& args) override { attention_.backward(args); }

  bool all_finite(Tensor x) override {
    const Tensor found(found_, DType::i32, {1});
    find_not_finite(*this, x, found);
    int32_t host = 0;
    copy_to_host(&host, found);
    return host == 0;
  }

  CudaHandle handle() const { return {index_, stream_.get()}; }

 private:
  static constexpr uintptr_t kAlignment = 4096;

  class Steps final : public MatmulSteps {
   public:
    explicit Steps(CudaDevice& device) : device_(device) {}
    void gemm(const LtGemm& gemm, const LtOperands& operands) override {
      device_.lt_.run(gemm, operands, device_.stream());
    }
    Tensor wide(int64_t rows, int64_t columns) override {
      return Tensor(device_.scratch(rows * columns * bytes_of(DType::f32)), DType::f32,
                    {rows, columns});
    }
    void add_bias(Tensor from, Tensor bias, Tensor to, bool accumulate) override {
      cuda::add_bias(device_, from, bias, to, accumulate);
    }
    void gelu_forward(Tensor x, Tensor y) override { cuda::gelu_forward(device_, x, y); }
    void gelu_backward(Tensor dy, Tensor aux) override { cuda::gelu_backward(device_, dy, aux); }
    void add(Tensor x, Tensor y) override { cuda::add(device_, x, y); }

   private:
    CudaDevice& device_;
  };

  // Product and sums of an operand at once, where a measurement has found that to be faster.
  bool multiplies_with_sums(const Matmul& args) {
    if (!lt_.has_choices() || args.c.numel() == 0) return false;
    const MatmulPlan plan = plan_matmul(args, Fuse::nothing, Sums::in_product);
    if (!plan.sums_in_gemm) return false;
    Steps steps(*this);
    const Tensor& sums = args.sums_of_b ? args.sums_of_b : args.sums_of_a;
    const LtOperands operands = {
        .first = args.b.data,
        .second = args.a.data,
        .result = args.c.data,
        .bias = args.accumulate ? steps.wide(1, sums.numel()).data : sums.data};
    if (!lt_.is_measured(plan.gemm, operands)) return false;
    try {
      run_matmul(plan, args, steps);
      return true;
    } catch (const Error&) {
      // As in multiply(); nothing has been enqueued.
      if (lt_.has(plan.gemm, operands)) throw;
      return false;
    }
  }

  void multiply(const Matmul& args) {
    for (const Fuse fuse : {Fuse::all, Fuse::bias, Fuse::nothing}) {
      const MatmulPlan plan = plan_matmul(args, fuse);
      Steps steps(*this);
      // The first slice of a plan in slices speaks for the others.
      LtGemm first = plan.gemm;
      void* result = plan.into == MatmulPlan::Into::aux ? args.aux.data : args.c.data;
      if (plan.into == MatmulPlan::Into::wide) {
        first.columns = plan.slice_rows;
        result = steps.wide(plan.slice_rows, args.c.cols()).data;
      }
      const LtOperands operands = {.first = args.b.data,
                                   .second = args.a.data,
                                   .result = result,
                                   .bias = plan.bias_in_gemm ? args.bias.data : nullptr,
                                   .aux = plan.gemm.ld_aux > 0 ? args.aux.data : nullptr,
                                   .scale_first = args.scale_b.data,
                                   .scale_second = args.scale_a.data};
      if (fuse != Fuse::nothing && !lt_.has(first, operands)) continue;
      try {
        run_matmul(plan, args, steps);
        return;
      } catch (const Error&) {
        // Named by its heuristics, and refused: as if there were none.
        if (fuse == Fuse::nothing || lt_.has(first, operands)) throw;
      }
    }
  }

  // Of this thread alone: those of the transport may allocate and ask events meanwhile.
  void begin() override {
    check(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal),
          "recording a pass");
  }
  Recording end() override {
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream_.get(), &graph), "recording a pass");
    cudaGraphExec_t made = nullptr;
    size_t ops = 0;
    cudaError_t error = cudaGraphGetNodes(graph, nullptr, &ops);
    if (error == cudaSuccess && ops > 0) error = cudaGraphInstantiate(&made, graph, 0);
    cudaGraphDestroy(graph);
    check(error, "making a graph of a pass");
    return made;
  }
  void abandon() override {
    cudaGraph_t graph = nullptr;
    cudaStreamEndCapture(stream_.get(), &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();  // it is told by who abandons and shall not be found by the next kernel
  }
  void launch(Recording recording) override {
    check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(recording), stream_.get()),
          "replaying a pass");
  }
  void destroy(Recording recording) override {
    cudaStreamSynchronize(stream_.get());
    cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(recording));
  }
  // CUDA would refuse it too, or worse: do it now, once, and not when the graph is launched.
  void not_recording(const char* what) const {
    if (!replays_.recording()) return;
    throw Error(Exit::run_failed,
                {.code = "device.cuda",
                 .what = std::string(what) + " is no part of a recording",
                 .help = "this is a defect of mtl; MTL_CUDA_GRAPHS=off goes round it"});
  }

  Stream stream() const override { return stream_.get(); }
  int multiprocessors() const override { return multiprocessors_; }
  bool has_warpgroups() const override { return warpgroups_; }
  kernel_scratch::Backward hopper_backward() const override { return backward_of(attention_mode_); }

  void* scratch(int64_t bytes) override {
    if (bytes > scratch_bytes_) {
      // Kernels that were enqueued may still use the old one, and graphs would again, of which one
      // may be under way. It stays: freeing waits for the device, on which a message may wait for a
      // peer that waits for us. After expect() only what no plan foresees makes it grow (a product
      // that cuBLASLt refuses with its bias, cuDNN's attention).
      not_recording("allocating memory");
      replays_.forget();
      if (scratch_ != nullptr) outgrown_.push_back(scratch_);
      take_scratch(bytes);
    }
    return scratch_;
  }
  void take_scratch(int64_t bytes) {
    scratch_ = nullptr;
    scratch_bytes_ = 0;
    const int64_t wanted = kernel_scratch::whole_pieces(bytes);
    scratch_ = gpu_memory(static_cast<size_t>(wanted));
    scratch_bytes_ = wanted;
  }

  AttentionKernel own_attention() {
    return {
        .forward = [this](const Attention& args) { OpsDevice::attention_forward(args); },
        .backward = [this](const AttentionBackward& args) { OpsDevice::attention_backward(args); }};
  }
  AttentionCandidate& open_cudnn() {
    cudnn_ = std::make_unique<CudnnAttention>(
        *this, stream_.get(), [this](size_t bytes) { return scratch(static_cast<int64_t>(bytes)); },
        own_attention());
    return *cudnn_;
  }

  const int index_;
  const std::string description_;
  int multiprocessors_ = 1;
  const AttentionMode attention_mode_ = attention_mode(std::getenv("MTL_ATTENTION"));
  bool float8_ = false, warpgroups_ = false;
  OwnedStream stream_;
  Staging staging_;
  LtMatmul lt_;
  std::unordered_map<void*, void*> allocations_;  // as handed out -> as CUDA gave it
  std::unordered_set<void*> on_host_;
  void* scratch_ = nullptr;
  int64_t scratch_bytes_ = 0;
  std::vector<void*> outgrown_;  // scratch memory of before
  void* found_ = nullptr;        // i32, for all_finite()
  std::unique_ptr<CudnnAttention> cudnn_;
  AttentionChooser attention_{attention_mode_, own_attention(),
                              [this]() -> AttentionCandidate& { return open_cudnn(); }, warn};
  const bool graphs_;
  Replays replays_{*this};
};

}  // namespace

std::unique_ptr<Device> make_cuda_device(int index, const std::string& description) {
  const cudaError_t error = cudaSetDevice(index);
  if (error != cudaSuccess) refuse_start(error);
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, index), "asking for a GPU's properties");
  const char* const file = std::getenv("MTL_PRODUCTS");
  auto products = product_choices(file, properties.name, LtMatmul::version(), warn);
  std::string words = description;
  if (!products.empty()) {
    words += std::string(", products by ") + file + " (" + std::to_string(products.size()) + ")";
  }
  return std::make_unique<CudaDevice>(index, words, std::move(products));
}

std::string choose_attention(Device& device, const AttentionShape& shape, DType dtype) {
  return dynamic_cast<CudaDevice&>(device).choose_attention(shape, dtype);
}

CudaHandle handle_of(Device& device) {
  return dynamic_cast<CudaDevice&>(device).handle();
}

}  // namespace mtl::cuda
