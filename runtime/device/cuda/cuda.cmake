# libmtl_cuda.so: everything of the GPU engine that includes a CUDA header, loaded at run time
# (runtime/device/load_cuda.h). Needs nvcc, the static runtime and cuBLASLt; never libcuda or NVML,
# which only a machine with a driver has.
#
# nvcc is called by commands of our own: the CMake of Debian 12 is older than CUDA 13 (it drops
# -std=c++20, and its check of the compiler takes longer than the kernels).
set(folder ${CMAKE_CURRENT_SOURCE_DIR}/runtime/device/cuda)
file(GLOB MTL_CUDA_KERNELS CONFIGURE_DEPENDS ${folder}/*.cu)
if(MTL_UNITY)
  # Half of the time of a small one goes into headers, for each architecture. These have no names in
  # common.
  foreach(together "activation;dropout;elementwise;embedding;head_norm;matmul_bias;optimizer"
      "attention_sinks;cross_entropy;expert_rows;latent_heads"
      "experts;float8;reduction;rope;wide_norm")
    set(content)
    foreach(name IN LISTS together)
      list(REMOVE_ITEM MTL_CUDA_KERNELS ${folder}/${name}.cu)
      string(APPEND content "#include \"${folder}/${name}.cu\"\n")
    endforeach()
    list(GET together 0 name)
    file(CONFIGURE OUTPUT generated/${name}_and_more.cu CONTENT "${content}")
    list(APPEND MTL_CUDA_KERNELS ${CMAKE_CURRENT_BINARY_DIR}/generated/${name}_and_more.cu)
  endforeach()
endif()

set(MTL_CUDA AUTO CACHE STRING "the GPU engine: AUTO (where nvcc is found), ON or OFF")
set_property(CACHE MTL_CUDA PROPERTY STRINGS AUTO ON OFF)

if(MTL_CUDA STREQUAL "AUTO" AND MTL_SANITIZE)
  message(STATUS "GPU engine: not built with sanitizers (its kernels run on the host in the tests)")
  return()
endif()
if(NOT MTL_CUDA STREQUAL "AUTO" AND NOT MTL_CUDA)
  message(STATUS "GPU engine: not built (MTL_CUDA=${MTL_CUDA})")
  return()
endif()
set(hints ${CUDAToolkit_ROOT} $ENV{CUDAToolkit_ROOT} $ENV{CUDA_HOME})
find_program(MTL_NVCC nvcc HINTS ${hints} PATHS /usr/local/cuda PATH_SUFFIXES bin)
if(MTL_NVCC)
  get_filename_component(toolkit ${MTL_NVCC} REALPATH)
  get_filename_component(toolkit ${toolkit}/../.. ABSOLUTE)
  foreach(library cudart_static cublasLt)
    find_library(MTL_LIBRARY_${library} ${library} HINTS ${toolkit} NO_DEFAULT_PATH
      PATH_SUFFIXES lib64 lib targets/x86_64-linux/lib targets/sbsa-linux/lib)
  endforeach()
endif()
if(NOT MTL_NVCC OR NOT MTL_LIBRARY_cudart_static OR NOT MTL_LIBRARY_cublasLt)
  set(missing "no CUDA toolkit with nvcc, libcudart_static and libcublasLt (CUDAToolkit_ROOT names one)")
  if(MTL_CUDA STREQUAL "AUTO")
    message(STATUS "GPU engine: not built: ${missing}")
    return()
  endif()
  message(FATAL_ERROR "MTL_CUDA=ON: ${missing}")
endif()
message(STATUS "GPU engine: with ${MTL_NVCC}")

set(MTL_CUDA_ARCHITECTURES 80 90 100 CACHE STRING
  "compute capabilities that libmtl_cuda.so has code for, ascending; PTX of the last one too")
list(GET MTL_CUDA_ARCHITECTURES -1 newest)
list(GET MTL_CUDA_ARCHITECTURES 0 oldest)
# code_of(OUT ARCH): machine code of one, and the PTX that it is made from where somebody reads it:
# drivers of the last one, and of all of them the tests, which run PTX where there is no GPU
# (tests/ptx). It is packed, a tenth of the code.
function(code_of out arch)
  set(code sm_${arch})
  if(MTL_TESTS OR arch STREQUAL newest)
    set(code [sm_${arch},compute_${arch}])
  endif()
  set(${out} -gencode arch=compute_${arch},code=${code} PARENT_SCOPE)
endfunction()
set(architectures)
foreach(arch ${MTL_CUDA_ARCHITECTURES})
  code_of(code ${arch})
  list(APPEND architectures ${code})
endforeach()

set(nvcc_flags -std=c++20 -ccbin ${CMAKE_CXX_COMPILER} -I${CMAKE_CURRENT_SOURCE_DIR}
  -Xcompiler=-fPIC,-fvisibility=hidden,-Wall,-Wextra,-Wshadow
  $<$<CONFIG:Debug>:-g> $<$<NOT:$<CONFIG:Debug>>:-O3> $<$<NOT:$<CONFIG:Debug>>:-DNDEBUG>)
option(MTL_CUDA_LINEINFO
  "kernels know their lines, for compute-sanitizer and ncu (same code, twice as large)" OFF)
if(MTL_CUDA_LINEINFO)
  list(APPEND nvcc_flags -lineinfo)
endif()
if(MTL_WERROR)
  list(APPEND nvcc_flags -Werror=all-warnings -Xcompiler=-Werror)
endif()

# mtl_nvcc(OUT SOURCE FLAG...): compiles one file; OUT receives the object.
function(mtl_nvcc out source)
  file(RELATIVE_PATH name ${CMAKE_CURRENT_SOURCE_DIR} ${source})
  string(REPLACE "/" "." name ${name})
  set(object ${CMAKE_CURRENT_BINARY_DIR}/cuda/${name}.o)
  set(strictly)
  if(MTL_WERROR AND name MATCHES warpgroups)
    set(strictly ${folder}/strict_nvcc.sh)
  endif()
  add_custom_command(OUTPUT ${object}
    COMMAND ${strictly} ${CCACHE_FOR_NVCC} ${MTL_NVCC} ${nvcc_flags} ${ARGN} -x cu -MD -MF ${object}.d -c
      ${source} -o ${object}
    DEPENDS ${source} DEPFILE ${object}.d COMMAND_EXPAND_LISTS VERBATIM
    COMMENT "nvcc ${name}")
  set(${out} ${object} PARENT_SCOPE)
endfunction()
set(CCACHE_FOR_NVCC)
if(CCACHE)
  set(CCACHE_FOR_NVCC ${CCACHE})
endif()
file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/cuda)

# Kernels for every architecture; what only calls them for one. The other .cpp files do without
# nvcc.
set(mtl_cuda_objects)
foreach(source ${MTL_CUDA_KERNELS})
  set(for ${architectures})
  if(source MATCHES warpgroups)  # sm_90a has instructions that nothing else has
    code_of(for 90a)
  endif()
  # Left to choose, nvcc makes one operation of a product and a sum here and not there: of AdamW's
  # second moment in packs another one than of single elements, of dropout onto the residual in the
  # norm's kernel and not in its own. Parameters that lie otherwise in another layout, and what other
  # kernels make again, would have other bits. Now it does what the source says (fmaf is one
  # operation), as the tests do on the host. Attention's kernels, which say fmaf where they want it,
  # have no such counterparts.
  if(NOT source MATCHES "/attention_")
    list(APPEND for -fmad=false)
  endif()
  mtl_nvcc(object ${source} ${for})
  list(APPEND mtl_cuda_objects ${object})
endforeach()
foreach(name cuda_device tensor_map)
  mtl_nvcc(object ${folder}/${name}.cpp -gencode arch=compute_${oldest},code=sm_${oldest})
  list(APPEND mtl_cuda_objects ${object})
endforeach()
file(GLOB sources CONFIGURE_DEPENDS ${folder}/*.cpp)
list(FILTER sources EXCLUDE REGEX "/(cuda_device|tensor_map)\\.cpp$")
file(GLOB transport CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/runtime/comm/nccl/*.cpp)
list(APPEND sources ${transport})

add_library(mtl_cuda MODULE ${sources} ${mtl_cuda_objects})
target_include_directories(mtl_cuda SYSTEM PRIVATE ${toolkit}/include)
list(JOIN MTL_CUDA_ARCHITECTURES "," listed)
target_compile_definitions(mtl_cuda PRIVATE MTL_CUDA_ARCHITECTURES=${listed})
target_link_libraries(mtl_cuda PRIVATE mtl_runtime mtl_flags ${MTL_LIBRARY_cudart_static}
  ${MTL_LIBRARY_cublasLt} dl rt)
# mtl's own functions are in here a second time: nothing of them is to be seen from outside, and what
# is not used (oneDNN, OpenMP) is not to be loaded.
set_target_properties(mtl_cuda PROPERTIES CXX_VISIBILITY_PRESET hidden
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}
  LINK_DEPENDS ${folder}/plugin.map)
target_link_options(mtl_cuda PRIVATE -Wl,--version-script=${folder}/plugin.map -Wl,-z,defs
  -Wl,--as-needed -Wl,--gc-sections)
