# What `cmake --install` puts where, for a person, for CPack and for the containers alike. Everything
# is relative to the prefix and found from the program's own place, so an installed tree can be moved.
# Components: mtl (the program, all that needs no GPU), cuda (the GPU engine). Packages have what is of
# one of the two, so every rule here names its own.
include(GNUInstallDirs)

# Where runtime/device/load_cuda.cpp looks, seen from the program: ../lib/mtl. Not
# CMAKE_INSTALL_LIBDIR, which is another folder on every distribution.
set(mtl_private_libraries lib/mtl)

install(TARGETS mtl RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT mtl)
# Libraries that an archive brings along (packaging/stage.cmake). The old tag, since it holds for the
# libraries of these libraries, too.
set_target_properties(mtl PROPERTIES INSTALL_RPATH "$ORIGIN/../${mtl_private_libraries}")
target_link_options(mtl PRIVATE -Wl,--disable-new-dtags)

# To be copied and changed (--templates_dir), to be read, and for editors; the program has its own.
install(DIRECTORY templates/ DESTINATION ${CMAKE_INSTALL_DATADIR}/mtl COMPONENT mtl)
install(FILES README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT mtl)
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT mtl FILES_MATCHING PATTERN "*.md")

# What all of this is made of: cmake --build build --target installed.
add_custom_target(installed DEPENDS mtl)
if(TARGET mtl_cuda)
  install(TARGETS mtl_cuda LIBRARY DESTINATION ${mtl_private_libraries} COMPONENT cuda)
  # NVIDIA's libraries beside it, or where its toolkit usually is.
  set_target_properties(mtl_cuda PROPERTIES INSTALL_RPATH "$ORIGIN;/usr/local/cuda/lib64")
  add_dependencies(installed mtl_cuda)
endif()
