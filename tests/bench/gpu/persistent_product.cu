// As many blocks as run at a time, each with tile after tile of D. One thread asks the copy engine
// for 64 columns of A and B at a time, four stages ahead; two warpgroups multiply (wgmma, 64 x 256
// each) and write their results by way of shared memory. (A third one would have too few registers
// for 64 x 256 sums.) In a cluster of two each block brings half of what both read of B to both: so
// a stage is empty when the consumers of both are done with it.
//
// While a warpgroup writes its results the tensor cores are the other's, if that still has steps to
// do: `lead` steps that the second one begins later it also ends later, in every tile.
//
// Tiles go down some rows of D before they go on to the next columns, so that what the blocks read
// at a time stays in the level-2 cache.
#include <cuda.h>

#include "bench/gpu/persistent_product.h"
#include "common/error.h"
#include "runtime/device/cuda/cuda_errors.h"
#include "runtime/device/cuda/warpgroup.h"

namespace mtl::bench {
namespace {

using namespace cuda;

constexpr int kColumns = 256, kStep = 64;                       // columns of D; of k
constexpr int kRowsAtOnce = 2048;                               // about: of D
constexpr int kOwnRows = 64;                                    // of a consumer
constexpr int kPanelBytes = kOwnRows * kStep * 2, kPanels = 2;  // of results, under way
constexpr int kOwnThreads = 1;  // barriers of the hardware, one for each consumer

constexpr int kConsumers = 2, kStages = 4, kRows = kConsumers * kOwnRows;  // rows of a tile
constexpr unsigned kThreads = (1 + kConsumers) * kWarpgroup;
constexpr unsigned kBytesA = kRows * kStep * 2, kBytesB = kColumns * kStep * 2;
constexpr unsigned kStage = kBytesA + kBytesB;
constexpr unsigned kShared = kStages * kStage + kConsumers * kPanels * kPanelBytes + 1024;

struct Tiles {
  int rows, columns, at_once;  // in tiles of a cluster; rows of them before the next columns
  int steps;                   // of k
  int lead;                    // of the first consumer, in steps
};
struct Place {
  int row, column;
};
__device__ inline Place place_of(const Tiles& tiles, int number) {
  const int all = tiles.at_once * tiles.columns, group = number / all, within = number % all;
  const int rows = min(tiles.at_once, tiles.rows - group * tiles.at_once);
  return {group * tiles.at_once + within % rows, within / rows};
}

// --- what attention's kernels do not need of Hopper: clusters, boxes of a matrix, 256 columns

__device__ inline void cluster_meets() {
  __syncwarp();
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
// At the same barrier of another block. It orders what this one's products have read and needs no
// more: `.release.cluster` would have it wait for all that the GPU's memory has under way, at every
// stage.
__device__ inline void arrive_at(Barrier& barrier, unsigned block) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(shared_address(&barrier)),
      "r"(block)
      : "memory");
}
// To the same place of all blocks of `mask`, completing on the barrier of each.
__device__ inline void copy_box(void* to, const TensorMap& map, Barrier& barrier, int column,
                                int row, uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(to)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(column), "r"(row), "h"(mask)
      : "memory");
}
__device__ inline void copy_box(void* to, const TensorMap& map, Barrier& barrier, int column,
                                int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(to)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(column), "r"(row)
      : "memory");
}
__device__ inline void write_box(const TensorMap& map, const void* from, int column, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(
          &map),
      "r"(shared_address(from)), "r"(column), "r"(row)
      : "memory");
}
// All but the newest panel.
__device__ inline void older_writes_have_read() {
  static_assert(kPanels == 2);
  asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
}
__device__ inline uint32_t two(float low, float high) {
  uint32_t both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
// clang-format off
#define D4(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define D16(i) D4(i), D4(i + 1), D4(i + 2), D4(i + 3)
__device__ inline void multiply_256(float (&d)[32][4], uint64_t left, uint64_t right, bool adds) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
      "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
      "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
      "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
      "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
      "}, %128, %129, p, 1, 1, 0, 0;\n}\n"
      : D16(0), D16(4), D16(8), D16(12), D16(16), D16(20), D16(24), D16(28)
      : "l"(left), "l"(right), "r"(static_cast<int>(adds)));
}
#undef D16
#undef D4
// clang-format on

template <int kCluster>
__global__ void __launch_bounds__(kThreads, 1)
    persistent_product(const MTL_GRID_CONSTANT TensorMap a, const MTL_GRID_CONSTANT TensorMap b,
                       const MTL_GRID_CONSTANT TensorMap d, Tiles tiles) {
  extern __shared__ unsigned char memory[];
  unsigned char* const stages = memory + (1024 - shared_address(memory) % 1024) % 1024;
  unsigned char* const results = stages + kStages * kStage;
  __shared__ Barrier full[kStages], empty[kStages], led;
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x / kWarpgroup), 0);
  unsigned own_block = 0;  // of the cluster's, which are below each other
  if (kCluster > 1) asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(own_block));
  const int own_row = static_cast<int>(own_block);
  const int first = static_cast<int>(blockIdx.x) / kCluster;
  const int clusters = static_cast<int>(gridDim.x) / kCluster;
  const int all = tiles.rows * tiles.columns;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      init(full[i], 1);
      init(empty[i], kConsumers * kCluster);
    }
    init(led, 1);
    barriers_made();
  }
  if (kCluster > 1) {
    cluster_meets();
  } else {
    __syncthreads();
  }

  if (group == 0) {
    give_registers<40>();
    if (threadIdx.x == 0) {
      constexpr int kPart = kColumns / kCluster;
      constexpr auto kAll = static_cast<uint16_t>((1 << kCluster) - 1);
      unsigned step = 0;  // of all tiles
      const auto wait_to_write = [&] { wait(empty[step % kStages], step / kStages % 2 ^ 1); };
      for (int number = first; number < all; number += clusters) {
        const Place place = place_of(tiles, number);
        const int row = (place.row * kCluster + own_row) * kRows;
        const int column = place.column * kColumns + own_row * kPart;
        for (int k = 0; k < tiles.steps; ++k, ++step) {
          wait_to_write();
          Barrier& here = full[step % kStages];
          unsigned char* const to_a = stages + step % kStages * kStage;
          unsigned char* const to_b = to_a + kBytesA;
          arrive_expecting(here, kStage);
          copy_box(to_a, a, here, k * kStep, row);
          if (kCluster > 1) {
            copy_box(to_b + own_row * kPart * 2 * kStep, b, here, k * kStep, column, kAll);
          } else {
            copy_box(to_b, b, here, k * kStep, column);
          }
        }
      }
      // What other blocks have still to say of stages here, they say before this one ends.
      for (int i = 0; i < kStages; ++i, ++step) wait_to_write();
    }
  } else {
    take_registers<232>();
    const int own = group - 1;
    const int thread = static_cast<int>(threadIdx.x % kWarpgroup), lane = thread % 32;
    unsigned char* const room = results + own * kPanels * kPanelBytes;
    const uint32_t at = __shfl_sync(~0u, shared_address(stages), 0);
    const uint64_t left = rows_operand<kStep>(at + own * kPanelBytes);
    const uint64_t right = rows_operand<kStep>(at + kBytesA);
    // To whom this thread says that a stage is empty, if to anybody: those that write to it here.
    const auto give_back = [&](unsigned step) {
      if (thread < kCluster) arrive_at(empty[step % kStages], static_cast<unsigned>(thread));
    };
    unsigned step = 0;
    const auto leads = static_cast<unsigned>(min(tiles.lead, tiles.steps));
    if (own > 0 && leads > 0 && first < all) wait(led, 0);
    for (int number = first; number < all; number += clusters) {
      const Place place = place_of(tiles, number);
      float sums[kColumns / 8][4];
      for (int k = 0; k < tiles.steps; ++k, ++step) {
        wait(full[step % kStages], step / kStages % 2);
        const unsigned stage = step % kStages * kStage;
        products_begin();
#pragma unroll
        for (unsigned i = 0; i < kStep / 16; ++i) {
          multiply_256(sums, descriptor::behind(left, stage + 32 * i),
                       descriptor::behind(right, stage + 32 * i), k > 0 || i > 0);
        }
        products_issued();
        products_wait<1>();
        if (k > 0) give_back(step - 1);
        if (own == 0 && thread == 0 && step + 1 == leads) arrive(led);
      }
      products_wait<0>();
      hold(sums);
      give_back(step - 1);

      const int row = (place.row * kCluster + own_row) * kRows + own * kOwnRows;
      const int column = place.column * kColumns;
#pragma unroll
      for (int panel = 0; panel < kColumns / 64; ++panel) {
        unsigned char* const to = room + panel % kPanels * kPanelBytes;
        if (thread == 0) older_writes_have_read();
        sync_some(kOwnThreads + own, kWarpgroup);
        const int within = thread / 32 * 16 + lane % 16;
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
          const auto& c = sums[panel * 8 + n];
          const auto& next = sums[panel * 8 + n + 1];
          const uint32_t four[4] = {two(c[0], c[1]), two(c[2], c[3]), two(next[0], next[1]),
                                    two(next[2], next[3])};
          store_tiles(to + within * 128 + ((n + lane / 16) ^ (within % 8)) * 16, four);
        }
        written_for_products();
        sync_some(kOwnThreads + own, kWarpgroup);
        if (thread != 0) continue;
        write_box(d, to, column + panel * 64, row);
        writes_issued();
      }
    }
    if (thread == 0) writes_done();
  }
  if (kCluster > 1) cluster_meets();
}

// --- host

using Encode = decltype(&cuTensorMapEncodeTiled);

TensorMap map_of(const void* data, int64_t rows, int64_t columns, int box_rows) {
  static const Encode encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = {};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                           cudaEnableDefault, &result),
          "the driver's tensor maps");
    return reinterpret_cast<Encode>(found);
  }();
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(2 * columns)};
  const cuuint32_t box[2] = {kStep, static_cast<cuuint32_t>(box_rows)}, steps[2] = {1, 1};
  TensorMap map;
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(data), sizes, strides,
             box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) check(cudaErrorInvalidValue, "a tensor map");
  return map;
}

template <int kCluster>
void launch(const PersistentProduct& p, int lead, cudaStream_t stream) {
  const auto kernel = persistent_product<kCluster>;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {kCluster, 1, 1};
  cudaLaunchConfig_t config = {};
  config.blockDim = dim3(kThreads);
  config.gridDim = dim3(kCluster);
  config.dynamicSmemBytes = kShared;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  // A cluster lies within one of the GPU's parts, which may leave multiprocessors over.
  static const int at_a_time = [&] {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared),
          "shared memory");
    int count = 0;
    check(cudaOccupancyMaxActiveClusters(&count, kernel, &config), "clusters");
    return count;
  }();
  config.gridDim = dim3(static_cast<unsigned>(at_a_time) * kCluster);
  const auto tiles_of = [](int64_t size, int tile) {
    return static_cast<int>((size + tile - 1) / tile);
  };
  constexpr int kTile = kRows * kCluster;
  const Tiles tiles = {tiles_of(p.m, kTile), tiles_of(p.n, kColumns), tiles_of(kRowsAtOnce, kTile),
                       static_cast<int>(p.k / kStep), lead};
  check(cudaLaunchKernelEx(&config, kernel, map_of(p.a, p.m, p.k, kRows),
                           map_of(p.b, p.n, p.k, kColumns / kCluster),
                           map_of(p.d, p.m, p.n, kOwnRows), tiles),
        "a product of our own");
}

}  // namespace

void enqueue(const PersistentProduct& product, const ProductForm& form, cudaStream_t stream) {
  if (form.cluster == 2) return launch<2>(product, form.lead, stream);
  launch<1>(product, form.lead, stream);
}

}  // namespace mtl::bench
