# How what install.cmake installs becomes packages: `cpack -G DEB` makes mtl and, where the GPU engine
# was built, mtl-cuda; `cpack -G TGZ` one archive of both with the libraries that they need.
# scripts/package does both, with the version and the date of the commit.
set(MTL_PACKAGE_MAINTAINER "The mtl maintainers <mtl@packages.invalid>" CACHE STRING
  "who answers for the packages: NAME <ADDRESS>")
set(MTL_PACKAGE_REVISION 1 CACHE STRING "what follows the version in a Debian package's version")

set(CPACK_PACKAGE_NAME mtl)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT ${MTL_PACKAGE_MAINTAINER})
set(CPACK_PACKAGE_VENDOR mtl)
string(TOLOWER ${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR} built_for)
set(CPACK_PACKAGE_FILE_NAME mtl-${PROJECT_VERSION}-${built_for})
set(CPACK_GENERATOR DEB TGZ)
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_THREADS 1)  # xz divides its work, and so its bytes, by the number of threads
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_CURRENT_LIST_DIR}/stage.cmake)

set(CPACK_COMPONENTS_ALL mtl)
if(TARGET mtl_cuda)
  list(APPEND CPACK_COMPONENTS_ALL cuda)
endif()

# One package per component. What they depend on is asked of the libraries (dpkg-shlibdeps).
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE ${MTL_PACKAGE_REVISION})
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_SOURCE mtl)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)

set(CPACK_DEBIAN_MTL_PACKAGE_NAME mtl)
# mtl speaks SSH itself; OpenSSH makes keys, and is there for what only it can (--ssh_command).
set(CPACK_DEBIAN_MTL_PACKAGE_SUGGESTS "mtl-cuda, openssh-client")
set(CPACK_DEBIAN_MTL_DESCRIPTION "trains language models on one machine or many
mtl takes a person from \"these machines, this text\" to a trained language
model: mtl config asks where to run, train.yaml says what to train, and
mtl launch trains it, on one machine, over SSH, under SLURM or on
Kubernetes. It has its own training engine with data, tensor, pipeline,
context and expert parallelism and ZeRO, and launches PyTorch and
accelerate scripts too.
.
This package has the program, which trains on CPUs. The engine for NVIDIA
GPUs is in mtl-cuda.")

if(TARGET mtl_cuda)
  # NVIDIA's packages are not Debian's; what the library asks for has the toolkit's major version.
  get_filename_component(cublas ${MTL_LIBRARY_cublasLt} REALPATH)
  get_filename_component(cublas_folder ${cublas} DIRECTORY)
  execute_process(COMMAND ${MTL_NVCC} --version OUTPUT_VARIABLE nvcc_says)
  string(REGEX MATCH "release ([0-9]+)\\.([0-9]+)" found "${nvcc_says}")
  set(cuda_major ${CMAKE_MATCH_1})
  set(cuda_minor ${CMAKE_MATCH_2})
  # Without it the folder of the library that was linked is unknown to dpkg-shlibdeps.
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${cublas_folder})
  set(CPACK_DEBIAN_CUDA_PACKAGE_NAME mtl-cuda)
  set(CPACK_DEBIAN_CUDA_PACKAGE_DEPENDS "mtl (= ${PROJECT_VERSION}-${MTL_PACKAGE_REVISION})")
  set(CPACK_DEBIAN_CUDA_PACKAGE_RECOMMENDS "libcublas-${cuda_major}-${cuda_minor}")
  set(CPACK_DEBIAN_CUDA_PACKAGE_SUGGESTS "libnccl2, libcudnn9-cuda-${cuda_major}")
  set(CPACK_DEBIAN_CUDA_DESCRIPTION "trains language models: the engine for NVIDIA GPUs
mtl takes a person from \"these machines, this text\" to a trained language
model. This package has its engine for NVIDIA GPUs of compute capability
8.0 and newer, which mtl loads where there is one.
.
It needs what Debian does not have: NVIDIA's driver, and cuBLASLt of CUDA
${cuda_major} (libcublasLt.so.${cuda_major}), from NVIDIA's package libcublas-${cuda_major}-${cuda_minor} or a CUDA
toolkit in /usr/local/cuda; for more than one GPU NCCL (libnccl2). mtl env
says what is missing.")
endif()

include(CPack)
