# Run by CPack between installing and packing: what only a package has.
#   DEB  changelogs and man pages as Debian wants them, copyright, lintian's overrides
#   TGZ  the libraries that the program needs, but for those of the compiler and libc: it runs where
#        nobody may install them
# Both: the licences of what is inside. Their texts are those of the Debian packages built with.
cmake_minimum_required(VERSION 3.25)

set(staged ${CPACK_TEMPORARY_INSTALL_DIRECTORY})

# Libraries whose headers end up in the program itself. (Boost's licence asks for nothing there.)
set(compiled_in libcli11-dev libfmt-dev librandom123-dev libxxhash-dev nlohmann-json3-dev)
set(copyright "mtl ${CPACK_PACKAGE_VERSION}: its sources come without a licence.

The program contains code of the libraries below, and uses others as shared libraries. The GPU engine
(libmtl_cuda.so) contains NVIDIA's CUDA runtime, which is under the licence of NVIDIA's CUDA toolkit.
")
foreach(package ${compiled_in})
  if(EXISTS /usr/share/doc/${package}/copyright)
    file(READ /usr/share/doc/${package}/copyright text)
    string(APPEND copyright "\n---- ${package} ----\n\n${text}")
  endif()
endforeach()

# gzipped(FILE TEXT): without name and time, so that the same text gives the same bytes.
function(gzipped file text)
  file(WRITE ${file} "${text}")
  execute_process(COMMAND gzip -9nf ${file} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

if(CPACK_GENERATOR STREQUAL DEB)
  set(doc ${staged}/mtl/usr/share/doc/mtl)
  file(WRITE ${doc}/copyright "${copyright}")
  file(READ ${doc}/CHANGELOG.md changes)
  file(REMOVE ${doc}/CHANGELOG.md)
  gzipped(${doc}/changelog "${changes}")
  string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)  # of SOURCE_DATE_EPOCH, if that is set
  gzipped(${doc}/changelog.Debian
    "mtl (${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}) unstable; urgency=medium

  * What is new stands in changelog.gz.

 -- ${CPACK_PACKAGE_CONTACT}  ${date}
")
  file(GLOB pages ${staged}/mtl/usr/share/man/man*/*.[1-9])
  foreach(page ${pages})
    execute_process(COMMAND gzip -9n ${page} COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
  foreach(component ${CPACK_COMPONENTS_ALL})
    string(TOUPPER ${component} upper)
    set(package ${CPACK_DEBIAN_${upper}_PACKAGE_NAME})
    set(share ${staged}/${component}/usr/share)
    file(MAKE_DIRECTORY ${share}/doc ${share}/lintian/overrides)
    file(COPY_FILE ${CMAKE_CURRENT_LIST_DIR}/lintian/${package} ${share}/lintian/overrides/${package})
    if(NOT package STREQUAL mtl)  # it needs mtl of this very version
      file(CREATE_LINK mtl ${share}/doc/${package} SYMBOLIC)
    endif()
  endforeach()
  return()
endif()

file(WRITE ${staged}/share/doc/mtl/copyright "${copyright}")
file(GLOB engine ${staged}/lib/mtl/libmtl_cuda.so)
# NVIDIA's library is half a gigabyte, and its licence another one. Those of libc belong to the
# machine: they and its loader are one. libstdc++ asks for a newer libc than all the others, and
# machines with that one have it.
file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${staged}/bin/mtl MODULES ${engine}
  RESOLVED_DEPENDENCIES_VAR libraries UNRESOLVED_DEPENDENCIES_VAR missing
  PRE_EXCLUDE_REGEXES "^libcublasLt" "^ld-linux" "^lib(c|m|dl|rt|pthread|resolv|util|stdc\\+\\+|gcc_s)\\.so")
if(missing)
  message(FATAL_ERROR "mtl needs libraries that are not on this machine: ${missing}")
endif()
list(SORT libraries)
file(MAKE_DIRECTORY ${staged}/lib/mtl ${staged}/share/doc/mtl/licences)
foreach(library ${libraries})
  get_filename_component(name ${library} NAME)
  get_filename_component(file ${library} REALPATH)
  file(COPY_FILE ${file} ${staged}/lib/mtl/${name})
  # /lib is /usr/lib, and packages name their files either way.
  string(REGEX REPLACE "^/usr/" "/" file ${file})
  execute_process(COMMAND dpkg-query -S ${file} /usr${file} OUTPUT_VARIABLE owner ERROR_QUIET)
  string(REGEX MATCH "^[^:,]*" package "${owner}")
  if(package AND EXISTS /usr/share/doc/${package}/copyright)
    file(COPY_FILE /usr/share/doc/${package}/copyright
      ${staged}/share/doc/mtl/licences/${package})
  else()
    message(WARNING "${library} is of no Debian package: its licence is not in the archive")
  endif()
endforeach()
