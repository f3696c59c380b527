# What of libmtl_cuda.so its kernels are not, over a CUDA and a cuBLASLt that are none: the device by
# itself, for the tests of its room, and all of it as a library that the program loads.
file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.cpp)
list(FILTER sources EXCLUDE REGEX "/(library|nccl|kernels|kernel_watchers|ptx_maps)\\.cpp$")
add_library(mtl_host_device OBJECT ${sources} support/fake_cublaslt.cpp ${cuda}/cuda_device.cpp
  ${cuda}/cuda_errors.cpp ${cuda}/lt_matmul.cpp ${cuda}/cudnn_attention.cpp ${cuda}/tensor_map.cpp)
target_include_directories(mtl_host_device SYSTEM PUBLIC ${toolkit}/include)
target_include_directories(mtl_host_device PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(mtl_host_device PUBLIC mtl_runtime PRIVATE mtl_flags)
# CUDA's headers, and stand-ins for them by the same names.
set_target_properties(mtl_host_device PROPERTIES UNITY_BUILD OFF)
target_link_libraries(test_runtime_device PRIVATE mtl_host_device)
set_source_files_properties(runtime/device/cuda_device.cpp runtime/device/host_cuda_graphs.cpp
  runtime/device/host_cuda_kernels.cpp PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)

set(transport ${CMAKE_SOURCE_DIR}/runtime/comm/nccl)
add_library(mtl_host_cuda MODULE host_cuda/library.cpp ${cuda}/plugin.cpp
  ${transport}/cuda_streams.cpp ${transport}/cuda_world.cpp $<TARGET_OBJECTS:mtl_test_nccl>
  $<TARGET_OBJECTS:mtl_test_cuda> $<TARGET_OBJECTS:mtl_host_device>)
target_include_directories(mtl_host_cuda SYSTEM PRIVATE ${toolkit}/include)
target_include_directories(mtl_host_cuda PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
target_compile_definitions(mtl_host_cuda PRIVATE MTL_CUDA_ARCHITECTURES=80,90)
target_link_libraries(mtl_host_cuda PRIVATE mtl_runtime mtl_flags)
set_target_properties(mtl_host_cuda PROPERTIES
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests
  LINK_OPTIONS "-Wl,--version-script=${CMAKE_SOURCE_DIR}/runtime/device/cuda/plugin.map;-Wl,-z,defs")

# bench/products_gpu over the same.
if(MTL_BENCH)
  add_executable(mtl_host_products bench/gpu/products_gpu.cpp host_cuda/library.cpp
    $<TARGET_OBJECTS:mtl_test_cuda> $<TARGET_OBJECTS:mtl_host_device>)
  target_include_directories(mtl_host_products SYSTEM PRIVATE ${toolkit}/include)
  target_include_directories(mtl_host_products PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  target_link_libraries(mtl_host_products PRIVATE mtl_runtime mtl_flags dl)
  set_target_properties(mtl_host_products PROPERTIES OUTPUT_NAME products_gpu UNITY_BUILD OFF
    RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests/bench)
  add_dependencies(mtl_host_products mtl_fake_nvml)
  add_test(NAME "bench: products and steps of a GPU, on the host"
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/scripts/gpu_benches ${CMAKE_BINARY_DIR})
  set_tests_properties("bench: products and steps of a GPU, on the host"
    PROPERTIES TIMEOUT 600 COST 40)
endif()

# libmtl_cuda.so's own objects, as gcc and nvcc have made them, over the same: kernels by the machine
# that runs their PTX. (Of mtl_host_device's objects those of files elsewhere have a __ in their names.)
add_library(mtl_host_kernels OBJECT host_cuda/kernels.cpp host_cuda/kernel_watchers.cpp)
target_include_directories(mtl_host_kernels SYSTEM PRIVATE ${toolkit}/include)
target_link_libraries(mtl_host_kernels PUBLIC mtl_ptx PRIVATE mtl_flags)
set_target_properties(mtl_host_kernels PROPERTIES UNITY_BUILD OFF)
target_link_libraries(test_runtime_device PRIVATE mtl_host_kernels mtl_ptx)
add_library(mtl_ptx_cuda MODULE host_cuda/library.cpp host_cuda/ptx_maps.cpp
  $<TARGET_OBJECTS:mtl_cuda> ${mtl_cuda_objects} $<TARGET_OBJECTS:mtl_ptx>
  $<TARGET_OBJECTS:mtl_host_kernels>
  "$<FILTER:$<TARGET_OBJECTS:mtl_host_device>,EXCLUDE,/__/|/emulated_maps[.]cpp>"
  $<FILTER:$<TARGET_OBJECTS:mtl_test_cuda>,INCLUDE,/lt_product[.]cpp>)
target_include_directories(mtl_ptx_cuda SYSTEM PRIVATE ${toolkit}/include)
target_include_directories(mtl_ptx_cuda PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(mtl_ptx_cuda PRIVATE mtl_runtime mtl_flags ${ZSTD_LIBRARY})
add_dependencies(mtl_ptx_cuda mtl_cuda)
set_target_properties(mtl_ptx_cuda PROPERTIES UNITY_BUILD OFF
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests
  LINK_OPTIONS "-Wl,--version-script=${CMAKE_SOURCE_DIR}/runtime/device/cuda/plugin.map;-Wl,-z,defs")

# Some of the op table with it; all of it: tests/scripts/ptx_ops BUILD.
function(ptx_ops name tests without)
  add_test(NAME "ptx: ${name}" COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/scripts/ptx_ops
    ${CMAKE_BINARY_DIR} ${tests} ${without})
  # They take one core for half a minute: early, so that the other has something to do meanwhile.
  set_tests_properties("ptx: ${name}" PROPERTIES ENVIRONMENT "${ARGN}" TIMEOUT 600 COST 40)
endfunction()
set(long "matmul: results*,matmul: bias*,matmul: every*,fp8: products*,fp8: an op*,*every width*"
  "route_experts*,a residual*,the exponential*,rows of*,cuda: sums*,outputs that go*")
list(JOIN long "," long)
ptx_ops("ops" "*" "attention:*,${long}")
ptx_ops("attention of Hopper"
  "attention: stages*,attention: tensor cores at*,*beyond 128,*that are capped,*sinks*" ""
  MTL_ATTENTION=own MTL_PTX_WATCH=races)
ptx_ops("attention of Hopper, backward in two" "attention: stages*" "" MTL_ATTENTION=split)
ptx_ops("attention and norms of Ampere"
  "attention: tensor cores at*,*sinks*,*norm forward*,*norm_forward*" "" MTL_HOST_CUDA_CAPABILITY=80)

# By NCCL's name, in a folder of its own for LD_LIBRARY_PATH.
add_library(mtl_host_nccl MODULE host_cuda/nccl.cpp)
target_include_directories(mtl_host_nccl PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(mtl_host_nccl PRIVATE mtl_runtime mtl_flags)
set_target_properties(mtl_host_nccl PROPERTIES
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests/nccl PREFIX "" OUTPUT_NAME libnccl
  SUFFIX .so.2)
