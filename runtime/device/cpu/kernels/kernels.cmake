# Each kernel source is compiled once per instruction set with MTL_ISA naming its namespace, and
# runtime/device/cpu picks a table at start. The sources use no standard-library templates, so that
# no inline function compiled for AVX-512 can be picked by the linker for an older machine.
file(GLOB kernel_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.cpp)
set(isa_flags_base "")
set(isa_flags_avx2 -mavx2 -mfma -mf16c)
set(isa_flags_avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mprefer-vector-width=512)
if(kernel_sources)
  foreach(isa base avx2 avx512)
    add_library(mtl_kernels_${isa} OBJECT ${kernel_sources})
    target_include_directories(mtl_kernels_${isa} PRIVATE ${CMAKE_SOURCE_DIR})
    target_compile_definitions(mtl_kernels_${isa} PRIVATE MTL_ISA=${isa})
    target_compile_options(mtl_kernels_${isa} PRIVATE -O3 ${isa_flags_${isa}}
      -fno-math-errno -fno-trapping-math)
    target_link_libraries(mtl_kernels_${isa} PRIVATE mtl_flags)
    if(MTL_SANITIZE AND isa STREQUAL avx512)
      # The tests of ops run the same sources as base and avx2, watched; what trains on this machine
      # takes half the time.
      target_compile_options(mtl_kernels_${isa} PRIVATE -fno-sanitize=all)
    elseif(MTL_SANITIZE)
      # At -O3 attention's loops with looks at memory in them take five to ten times as long to
      # compile and are no faster. Nothing trains with base where there is AVX2.
      target_compile_options(mtl_kernels_${isa} PRIVATE $<IF:$<STREQUAL:${isa},base>,-O1,-O2>)
    endif()
    # Each file fills its own part of the table, by functions of the same names.
    set_target_properties(mtl_kernels_${isa} PROPERTIES UNITY_BUILD OFF)
    # Written in gcc's vector extensions, of which clang lacks one (__builtin_shuffle).
    if(NOT CMAKE_CXX_COMPILER_ID STREQUAL GNU)
      set_target_properties(mtl_kernels_${isa} PROPERTIES
        CXX_COMPILER_LAUNCHER ${CMAKE_CURRENT_LIST_DIR}/by-gcc)
    endif()
    target_sources(mtl_runtime PRIVATE $<TARGET_OBJECTS:mtl_kernels_${isa}>)
  endforeach()
endif()
