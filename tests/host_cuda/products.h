// cuBLASLt's products (support/fake_cublaslt.h) in the streams of this CUDA.
#pragma once

namespace mtl::host_cuda {

// From now on they are carried out.
void carry_out_products();

}  // namespace mtl::host_cuda
